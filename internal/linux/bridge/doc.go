// SPDX-License-Identifier: Apache-2.0

// Package bridge follows a Linux bridge for a data plane that forwards frames in its place: it
// finds the ports of the hosts of interest, and the ports at which the bridge forwards without
// conditions unknown to the data plane.
package bridge
