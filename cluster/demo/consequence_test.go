// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"strings"
	"testing"

	"github.com/libra-ina/libra/agent/agentproto"
	"github.com/libra-ina/libra/internal/linux/proc"
	"github.com/libra-ina/libra/wire"
)

func TestConsequences(t *testing.T) {
	for last, want := range map[string]bool{
		"libra: parameter server: barrier: worker 2 left before it had finished":                                         true,
		"libra: parameter server: the connection broke (connection refused): is it running, and can this host reach it?": true,
		"libra: aggregator 127.0.0.1:1, job 1, sender 1: refused: " + wire.Refusal{Code: wire.CodeUnknownSender}.Error(): true,
		"libra: " + agentproto.PartyGone.Error():                                                                         true,
		"libra: " + agentproto.JobEnded.Error():                                                                          true,
		"libra._errors.PartyGone: PARTY_GONE: another client of this host":                                               true,
		"libra: aggregator 127.0.0.1:1, job 1, sender 1: refused: value or sum out of range: pair 1 (key 7)":             false,
		"ValueError: 3": false,
		"libra: train.libfm:3:4: \"x\" is not an index:value": false,
		"": false,
	} {
		e := &proc.ExitError{Code: 1, Stderr: []string{"level=WARN msg=\"lost a worker\" left before it had finished", "another line", "and one more", last}}
		if got := isConsequence(e); got != want {
			t.Errorf("%q: %v, want %v", last, got, want)
		}
	}
	if isConsequence(&proc.ExitError{Code: 1}) || isConsequence(&proc.ExitError{Code: -1, Signal: "killed", Stderr: []string{"PartyGone"}}) {
		t.Error("a process without words, or killed, is a consequence")
	}
	for _, text := range consequences {
		if strings.TrimSpace(text) != text || len(text) < 8 {
			t.Errorf("%q", text)
		}
	}
}
