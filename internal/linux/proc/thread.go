// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"errors"
	"sync"
)

// ErrThreadClosed is returned by [Thread.Run] after [Thread.Close].
var ErrThreadClosed = errors.New("proc: thread is closed")

// Thread is one operating-system thread that lives until Close.
//
// It exists because of Linux's parent-death signal (prctl(2), PR_SET_PDEATHSIG), whose "parent" is
// the thread that forked, not the process. A child of an ordinary goroutine would be killed
// whenever the Go runtime ends the thread that ran it. Children with [DieWithParent] must therefore
// be started from a Thread.
//
// Its methods may be called from several goroutines.
type Thread struct {
	calls chan func()
	quit  chan struct{}
	once  sync.Once
}

// NewThread starts a thread.
func NewThread() *Thread {
	t := &Thread{calls: make(chan func()), quit: make(chan struct{})}
	go onOwnThread(t.serve)
	return t
}

func (t *Thread) serve() {
	for {
		select {
		case call := <-t.calls:
			call()
		case <-t.quit:
			return
		}
	}
}

// Run executes fn on the thread and returns its error. Calls are executed one
// at a time. fn must leave the thread as it found it (namespaces, capabilities)
// and must not call Run.
func (t *Thread) Run(fn func() error) error {
	result := make(chan error, 1)
	select {
	case t.calls <- func() { result <- fn() }:
		return <-result
	case <-t.quit:
		return ErrThreadClosed
	}
}

// Close ends the thread. The kernel kills running children that were started from it with
// [DieWithParent]. Close may be called more than once.
func (t *Thread) Close() {
	t.once.Do(func() { close(t.quit) })
}
