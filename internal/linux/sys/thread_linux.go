// SPDX-License-Identifier: Apache-2.0

package sys

import (
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// OwnThread runs fn on a thread that ends with it, and returns fn's error. fn may change the state
// of its thread: network namespace, user, capabilities, filter of system calls.
//
// It is never the process's first thread, which cannot end, and whose namespaces and user /proc
// shows as those of the process.
func OwnThread(fn func() error) (err error) {
	done := make(chan struct{})
	go onOtherThread(func() {
		defer close(done)
		err = fn()
	})
	<-done
	return err
}

// onOtherThread calls fn on a thread that is not the process's first one, and ends with it. It
// needs its own goroutine.
func onOtherThread(fn func()) {
	runtime.LockOSThread()
	if unix.Gettid() != os.Getpid() {
		fn()
		return
	}
	// The first thread is kept locked until another is found.
	found := make(chan struct{})
	go onOtherThread(func() {
		close(found)
		fn()
	})
	<-found
	runtime.UnlockOSThread()
}
