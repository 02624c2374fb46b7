//go:build linux

package agent_test

// children are what the test binary does instead of testing, by the value of LIBRA_AGENT_CHILD.
var children = map[string]func() int{}
