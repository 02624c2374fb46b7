// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package codec

import "time"

var started = time.Now()

func now() time.Duration { return time.Since(started) }
