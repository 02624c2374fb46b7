package child

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// pin moves all threads of the process to CPUs. Threads that the runtime starts
// later inherit them.
func pin(cpus []int) error {
	var set unix.CPUSet
	for _, cpu := range cpus {
		set.Set(cpu)
	}
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return fmt.Errorf("child: pin to CPUs %v: %w", cpus, err)
	}
	for _, task := range tasks {
		tid, err := strconv.Atoi(task.Name())
		if err == nil {
			err = os.NewSyscallError("sched_setaffinity", unix.SchedSetaffinity(tid, &set))
		}
		if err != nil && !errors.Is(err, unix.ESRCH) { // a thread may end meanwhile
			return fmt.Errorf("child: pin to CPUs %v: %w", cpus, err)
		}
	}
	return nil
}
