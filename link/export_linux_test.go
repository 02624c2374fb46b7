// SPDX-License-Identifier: Apache-2.0

package link

// ZeroCopy reports whether all sockets of an AF_XDP link are in zero-copy mode.
func ZeroCopy(l Link) bool {
	for _, s := range l.(*afxdpLink).socks {
		if !s.Info().ZeroCopy {
			return false
		}
	}
	return true
}
