// SPDX-License-Identifier: Apache-2.0

package agentproto

import "fmt"

// Code is the reason for a refusal, a failure or an end. It is an error.
type Code uint32

// The codes of docs/agent.md.
const (
	OK         Code = 0
	BadHello   Code = 1
	BadVersion Code = 2
	Features   Code = 3
	NoJob      Code = 4
	NotAllowed Code = 5
	Dimension  Code = 6
	HotSet     Code = 7
	NoMemory   Code = 8
	Clients    Code = 9
	Parties    Code = 10
	JobEnded   Code = 11
	Owned      Code = 12
	NotOpen    Code = 13

	NotFinite  Code = 32
	OutOfRange Code = 33
	NoBatch    Code = 34
	BadMode    Code = 35
	Refused    Code = 36
	BadAnswer  Code = 37
	PartyGone  Code = 38
	BadStep    Code = 39
	NoParty    Code = 40
	Dropped    Code = 41
	NoSums     Code = 42
	NoWeights  Code = 43
	NotOwner   Code = 44
	NoServer   Code = 45

	AgentClosed    Code = 64
	BadEntry       Code = 65
	BadIndex       Code = 66
	WakeFlood      Code = 67
	AggregatorLost Code = 68
)

// codes contains a text for each code.
var codes = map[Code]string{
	OK:         "no error",
	BadHello:   "the first message is not a HELLO: connect with a library of Libra",
	BadVersion: "client and agent have no version of the protocol in common",
	Features:   "the agent lacks a feature that the client needs: update the agent",
	NoJob:      "the agent serves no job of this name: see its configuration",
	NotAllowed: "this user may not use the job: add the user or a group of it to the job in the agent's configuration",
	Dimension:  "the rows of the job have a different number of gradients: WELCOME has the number",
	HotSet:     "the job's hot set differs: use the job's file",
	NoMemory:   "more memory than the configuration grants: ask for less, or raise the limit",
	Clients:    "the job has as many clients as the configuration allows: end one, or raise the limit",
	Parties: "the other clients of the job gave a different number of parties, or all parties have joined, or one has left: " +
		"start all of them anew",
	JobEnded: "the agent's part in the job has ended: the agent's log has the reason; open a session again when the job runs",
	Owned: "the job has an owner already, or a parameter server, which owns it: end the other owner first, " +
		"or open the job without owning it",
	NotOpen: "the agent could not open the job of a range: start its owner first, or do what the text of the refusal says, " +
		"and try again",
	NotFinite:  "a gradient is NaN or infinite: look where it comes from; clipping and a lower learning rate often help",
	OutOfRange: "a gradient is out of the range of the job's arithmetic: send smaller numbers",
	NoBatch:    "no prepared batch has this handle and number of keys: prepare it in this session, and do not release it before",
	BadMode:    "the job's mode has no such operation: sums in answers need mode fetchadd, REDUCE needs job.sync",
	Refused:    "the aggregator or the parameter server refused a frame: the refusal's code has the reason",
	BadAnswer:  "the aggregator or the parameter server gave an invalid answer: run the same version of Libra on all hosts",
	PartyGone:  "another client of this host that took part in the barrier has ended: start all of them anew",
	BadStep:    "the barrier's step is not the one that is due: each party ends each step once",
	NoParty:    "a client that takes no part in barriers submitted one: give the number of parties in HELLO",
	Dropped: "the step was dropped for all: gradients in it were refused, which the client that pushed them is told, " +
		"or a client that had pushed in it ended before its end, or the agent of a host has died; the others may push theirs again",
	NoSums: "no REDUCE or HARVEST of this client returned sums, or they do not contain these rows: submit SUMS after one, for rows of it",
	NoWeights: "the job keeps no weights to pull: give it an optimizer, adagrad or sgd " +
		"(model.optimizer of the cluster file, --optimizer of libra run)",
	NotOwner:    "only the owner of a job gets its harvests: open the session as the owner, which jobs of a range have",
	NoServer:    "the job has no parameter server, which takes cold rows and answers pulls: push rows of the hot set only",
	AgentClosed: "the agent was stopped: open a session with its successor",
	BadEntry:    "an entry breaks the rules of docs/agent.md: report this",
	BadIndex:    "an index of a ring jumped: report this, unless the program writes into the shared memory",
	AggregatorLost: "the aggregator was stopped, or restarted, or cannot be reached any more, and the sums that no harvest had are lost: " +
		"begin anew when it runs",
	WakeFlood: "far more wake-ups were sent than entries submitted: report this",
}

func (c Code) Error() string {
	if text, ok := codes[c]; ok {
		return text
	}
	return fmt.Sprintf("a code that this version does not know (%d): update it", uint32(c))
}
