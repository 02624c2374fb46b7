package sys

import (
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// OwnThread runs fn on a thread that ends with it, and returns fn's error. fn may
// change what each thread has of its own: network namespace, user, capabilities,
// filter of system calls.
//
// It is never the process's first thread. That one cannot end, and /proc shows its
// namespaces and its user as those of the process.
func OwnThread(fn func() error) (err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		if unix.Gettid() != os.Getpid() {
			err = fn()
			return
		}
		err = OwnThread(fn) // while this goroutine keeps the first thread
		runtime.UnlockOSThread()
	}()
	<-done
	return err
}
