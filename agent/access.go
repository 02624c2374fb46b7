// SPDX-License-Identifier: Apache-2.0

//go:build linux

package agent

import (
	"fmt"
	"os"
	"os/user"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

// allows reports whether a user, identified by the kernel, may use the job.
func (j *Job) allows(who *unix.Ucred) bool {
	if int(who.Uid) == os.Geteuid() || slices.Contains(j.Users, who.Uid) || slices.Contains(j.Groups, who.Gid) {
		return true
	}
	return len(j.Groups) > 0 &&
		slices.ContainsFunc(groupsOf(who.Uid), func(g uint32) bool { return slices.Contains(j.Groups, g) })
}

// groupsOf returns the user's groups in the system's files.
func groupsOf(uid uint32) (groups []uint32) {
	u, err := user.LookupId(strconv.FormatUint(uint64(uid), 10))
	if err != nil {
		return nil
	}
	ids, _ := u.GroupIds()
	for _, id := range ids {
		if n, err := strconv.ParseUint(id, 10, 32); err == nil {
			groups = append(groups, uint32(n))
		}
	}
	return groups
}

// userName is the name of a user in messages.
func userName(uid uint32) string {
	id := strconv.FormatUint(uint64(uid), 10)
	if u, err := user.LookupId(id); err == nil {
		return fmt.Sprintf("%s (%s)", u.Username, id)
	}
	return id
}
