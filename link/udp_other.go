// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package link

// openUDPSocket is the [openSocket] of [OpenUDP].
var openUDPSocket openSocket = openNetSocket
