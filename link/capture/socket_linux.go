// SPDX-License-Identifier: Apache-2.0

package capture

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/libra-ina/libra/internal/linux/sys"
)

// prefix of the sockets' names; the @ stands for the zero byte of an abstract
// one.
const prefix = "@libra-"

// listen opens the socket of a process.
func listen(pid int) (*net.UnixListener, error) {
	return net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: prefix + strconv.Itoa(pid)})
}

// peer returns the user and the process at the other end.
func peer(conn *net.UnixConn) (uid, pid int, err error) {
	cred, err := sys.Credentials(conn)
	if err != nil {
		return 0, 0, err
	}
	return int(cred.Uid), int(cred.Pid), nil
}

// dial connects to a process's socket in its network namespace.
func dial(pid int) (*net.UnixConn, error) {
	dir := procDir(pid)
	if _, err := os.Stat(dir); err != nil || pid < 1 {
		return nil, fmt.Errorf("%w (libra capture --list shows those that can be captured)", ErrNoProcess)
	}
	ns, err := sys.OpenNamespace(dir)
	hidden := errors.Is(err, fs.ErrPermission)
	if hidden { // it may still be the caller's own
		ns, err = sys.OpenNamespace("/proc/self")
	}
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	conn, err := dialIn(ns, prefix+innerPID(pid))
	if err == nil {
		// Any process may take any abstract name.
		if _, got, perr := peer(conn); perr == nil && got == pid {
			return conn, nil
		}
		conn.Close()
	}
	switch {
	case hidden:
		return nil, hiddenNetwork(pid)
	case err == nil || errors.Is(err, syscall.ECONNREFUSED):
		return nil, notCapturable(pid)
	case errors.Is(err, fs.ErrPermission):
		return nil, fmt.Errorf("%w: entering its network namespace needs CAP_SYS_ADMIN: capture as root", ErrPermission)
	}
	return nil, err
}

// hiddenNetwork explains why the network namespace of a process cannot be seen.
func hiddenNetwork(pid int) error {
	if info, err := os.Stat(procDir(pid)); err == nil && os.Geteuid() != 0 {
		if st, ok := info.Sys().(*syscall.Stat_t); ok && int(st.Uid) != os.Geteuid() {
			return fmt.Errorf("%w: it belongs to %s: capture as that user or as root", ErrPermission, userName(int(st.Uid)))
		}
	}
	return fmt.Errorf("%w: reading its network namespace needs CAP_SYS_PTRACE: capture as root, outside containers",
		ErrPermission)
}

// notCapturable describes a process that does not answer.
func notCapturable(pid int) error {
	what := ""
	if cmdline, err := os.ReadFile(filepath.Join(procDir(pid), "cmdline")); err == nil {
		what = strings.TrimSpace(string(bytes.ReplaceAll(cmdline, []byte{0}, []byte{' '})))
	}
	return fmt.Errorf("%w: it is %q, or has no link yet (libra capture --list shows those that can be captured)",
		ErrNotCapturable, what)
}

func procDir(pid int) string { return filepath.Join("/proc", strconv.Itoa(pid)) }

// innerPID returns the ID of a process in its own PID namespace, for example of a container.
func innerPID(pid int) string {
	status, err := os.ReadFile(filepath.Join(procDir(pid), "status"))
	if err == nil {
		for line := range strings.Lines(string(status)) {
			if rest, ok := strings.CutPrefix(line, "NSpid:"); ok {
				if all := strings.Fields(rest); len(all) > 0 {
					return all[len(all)-1]
				}
			}
		}
	}
	return strconv.Itoa(pid)
}

// dialIn connects to an abstract socket of a network namespace.
func dialIn(ns *sys.Namespace, name string) (conn *net.UnixConn, err error) {
	to := &net.UnixAddr{Net: "unix", Name: name}
	here, err := sys.ThreadNamespaceID()
	if err != nil {
		return nil, err
	}
	if here == ns.ID() {
		return net.DialUnix("unix", nil, to)
	}
	// Not Do: returning from the namespace takes privileges.
	err = ns.Run(func() (err error) {
		conn, err = net.DialUnix("unix", nil, to)
		return err
	})
	return conn, err
}

// List returns the processes that this user can capture, by process ID. Without root privileges it
// sees those in its own network namespace.
func List() ([]Source, error) {
	all, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	seen := map[sys.NamespaceID]bool{}
	var found []Source
	for _, dir := range append([]string{"/proc/self"}, all...) {
		ns, err := sys.OpenNamespace(dir)
		if err != nil {
			continue // ended, or not accessible
		}
		if !seen[ns.ID()] {
			seen[ns.ID()] = true
			found = append(found, listIn(ns, dir)...)
		}
		ns.Close()
	}
	slices.SortFunc(found, func(a, b Source) int { return a.PID - b.PID })
	return found, nil
}

// listIn asks the processes that answer in the network namespace of a process.
func listIn(ns *sys.Namespace, procDir string) []Source {
	var found []Source
	for _, name := range sockets(procDir) {
		conn, err := dialIn(ns, name)
		if err != nil {
			continue
		}
		src, err := handshake(conn, bufio.NewReaderSize(conn, lineLimit), request{Protocol: protocol})
		_, pid, perr := peer(conn)
		conn.Close()
		if err == nil && perr == nil && pid > 0 {
			src.PID = pid
			found = append(found, src)
		}
	}
	return found
}

// sockets returns the names of capture sockets in a process's network namespace (proc_pid_net(5):
// the name is the last field).
func sockets(procDir string) []string {
	table, err := os.ReadFile(filepath.Join(procDir, "net", "unix"))
	if err != nil {
		return nil
	}
	names := map[string]bool{}
	for line := range strings.Lines(string(table)) {
		fields := strings.Fields(line)
		if len(fields) != 8 {
			continue
		}
		number, ours := strings.CutPrefix(fields[7], prefix)
		if _, err := strconv.Atoi(number); ours && err == nil {
			names[fields[7]] = true
		}
	}
	return slices.Collect(maps.Keys(names))
}
