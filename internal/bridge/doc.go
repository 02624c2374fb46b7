// SPDX-License-Identifier: Apache-2.0

// Package bridge follows a Linux bridge for a data plane that sends frames on
// beside it: behind which of its ports the hosts of interest are, and at which
// ports it forwards frames without conditions that the data plane does not know.
package bridge
