// SPDX-License-Identifier: Apache-2.0

package aggregator

import (
	"errors"
	"fmt"
)

// Errors of the management calls. Returned errors wrap one of them and name the job.
var (
	// ErrConfig means that a field of a configuration is out of range.
	ErrConfig = errors.New("invalid configuration")
	// ErrUnsupported means that the data plane does not support a mode, arithmetic, layout or
	// address family.
	ErrUnsupported = errors.New("not supported by this data plane")
	// ErrTooManySlots means that a job wants more slots than its data plane has for one.
	ErrTooManySlots = errors.New("too many slots")
	// ErrMode means that the job's mode does not have the operation.
	ErrMode = errors.New("not possible in the job's mode")
	// ErrTooManySenders means that the data plane's sender table is full, or
	// that a job with rounds has admitted all its workers.
	ErrTooManySenders = errors.New("too many senders")
	// ErrJobExists means that the job id is in use; RemoveJob frees it.
	ErrJobExists = errors.New("job exists")
	// ErrNoJob means that there is no job with the id.
	ErrNoJob = errors.New("no such job")
	// ErrSenderExists means that the sender id is already admitted to the job.
	ErrSenderExists = errors.New("sender is admitted already")
	// ErrNoSender means that the sender is not admitted to the job.
	ErrNoSender = errors.New("no such sender")
	// ErrBankNotCleared means that the bank of the previous Swap must be
	// cleared before the next Swap.
	ErrBankNotCleared = errors.New("previous bank is not cleared")
	// ErrBankNotFrozen means that a bank given to Clear is not the one that
	// the job's last Swap returned.
	ErrBankNotFrozen = errors.New("bank is not frozen")
	// ErrBusy means that the data plane was too busy. Nothing is lost, and the call may be
	// repeated.
	ErrBusy = errors.New("data plane is busy")
	// ErrClosed means that the data plane was closed.
	ErrClosed = errors.New("data plane is closed")
)

// jobError wraps a sentinel error with the job and the details.
func jobError(job uint16, err error, format string, args ...any) error {
	return fmt.Errorf("job %d: %w: %s", job, err, fmt.Sprintf(format, args...))
}

// enumName returns the name of an enum's value, or the type and the number of an unnamed value.
func enumName(typ string, names []string, v uint8) string {
	if int(v) < len(names) {
		return names[v]
	}
	return fmt.Sprintf("%s(%d)", typ, v)
}
