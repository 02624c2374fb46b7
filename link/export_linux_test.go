// SPDX-License-Identifier: Apache-2.0

package link

// NewBed is for tests of the exported API.
var NewBed = newBed
