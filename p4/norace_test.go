// SPDX-License-Identifier: Apache-2.0

//go:build !race

package p4

const underRace = false
