// SPDX-License-Identifier: Apache-2.0

//go:build linux

package agentproto

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"unsafe"
)

func page(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/agent.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// section returns the part of the page under a heading, up to the next one.
func section(t *testing.T, heading string) string {
	t.Helper()
	_, text, ok := strings.Cut(page(t), "\n"+heading)
	if !ok {
		t.Fatalf("the page has no %q", heading)
	}
	before, _, _ := strings.Cut(text, "\n#")
	return before
}

// The codes of the page equal the codes here, text by text.
func TestPageHasTheCodes(t *testing.T) {
	rows := regexp.MustCompile(`(?m)^\| (\d+) \| [A-Z_]+ \| [^|]*\| ([^|]+) \|$`).FindAllStringSubmatch(section(t, "## Codes"), -1)
	if len(rows) != len(codes) {
		t.Errorf("the page has %d codes, the package %d", len(rows), len(codes))
	}
	for _, row := range rows {
		n, _ := strconv.Atoi(row[1])
		text := strings.Replace(row[2], "this page", "docs/agent.md", 1)
		if got := Code(n).Error(); got != text {
			t.Errorf("code %d is %q, on the page %q", n, got, text)
		}
	}
}

// The words of the header are at the page's offsets.
func TestPageHasTheWords(t *testing.T) {
	var h Header
	for name, offset := range map[string]uintptr{
		"sq_tail": unsafe.Offsetof(h.SQTail), "sq_head": unsafe.Offsetof(h.SQHead), "cq_tail": unsafe.Offsetof(h.CQTail),
		"cq_head": unsafe.Offsetof(h.CQHead), "agent_sleeps": unsafe.Offsetof(h.AgentSleeps),
		"client_sleeps": unsafe.Offsetof(h.ClientSleeps), "end_code": unsafe.Offsetof(h.EndCode),
	} {
		if row := fmt.Sprintf("\n| %d–%d | u32 | `%s`", offset, offset+3, name); !strings.Contains(page(t), row) {
			t.Errorf("the page has no row %q", row)
		}
	}
	if row := fmt.Sprintf("\n| %d–%d | text | `end_text`", unsafe.Offsetof(h.endText), unsafe.Sizeof(h)-1); !strings.Contains(page(t), row) {
		t.Errorf("the page has no row %q", row)
	}
}

// Each field of a message is at the bytes that the page gives: a number is written with a distinct
// value, which the test looks up there.
func TestPageHasTheFields(t *testing.T) {
	hello := Hello{Oldest: 1, Newest: 7, Features: 3, Entries: 4, Dim: 5, BufferBytes: 6, Parties: 8, Owner: true}
	h, err := hello.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	welcome := Welcome{
		Version: 1, Job: 2, Mode: 3, Arithmetic: 4, Features: 5, Dim: 6, Exponent: 7, HotRows: 8, Client: 9, PID: 10, Instance: 11, NextStep: 12,
		Layout: Layout{Total: 13, SQ: 14, CQ: 15, Buffers: 16, BufferBytes: 17, Entries: 18}, PreparedBytes: 19,
	}
	refused := RefusedError{Code: 2, Oldest: 3, Newest: 4}
	entry, completion := new([EntryLen]byte), new([CompletionLen]byte)
	(&Entry{Op: 1, Dim: 2, Tag: 3, Batch: 4, Keys: 5, Values: 6, Sums: 7, N: 8, Step: 9}).Put(entry)
	(&Completion{Tag: 1, Status: 2, Op: 3, Peer: 4, Refusal: 5, Ticket: 6, Detail: 7, Key: 8, KeyKnown: true, Acknowledged: 9, Refused: 10, Unknown: 11}).Put(completion)
	for heading, c := range map[string]struct {
		message []byte
		values  map[string]uint64
	}{
		"### HELLO": {h, map[string]uint64{
			"oldest": 1, "newest": 7, "features": 3, "entries": 4, "dim": 5, "buffer_bytes": 6, "parties": 8, "owner": 1, "magic": messageMagic,
		}},
		"### WELCOME": {welcome.Marshal(), map[string]uint64{
			"code": 0, "version": 1, "job": 2, "mode": 3, "arithmetic": 4, "features": 5, "dim": 6, "exponent": 7, "hot_rows": 8, "client": 9,
			"agent_pid": 10, "instance": 11, "next_step": 12, "memory_bytes": 13, "sq_offset": 14, "cq_offset": 15, "buffer_offset": 16,
			"buffer_bytes": 17, "entries": 18, "prepared_bytes": 19, "magic": messageMagic,
		}},
		"### REFUSED": {refused.Marshal(), map[string]uint64{"code": 2, "oldest": 3, "newest": 4, "magic": messageMagic}},
		"## Entries":  {entry[:], map[string]uint64{"op": 1, "dim": 2, "tag": 3, "batch": 4, "keys": 5, "values": 6, "sums": 7, "n": 8, "step": 9}},
		"## Completions": {completion[:], map[string]uint64{
			"tag": 1, "status": 2, "op": 3, "peer": 4, "refusal": 5, "ticket": 6, "detail": 7, "key": 8, "key_known": 1, "acknowledged": 9, "refused": 10, "unknown": 11,
		}},
	} {
		found := 0
		for _, row := range regexp.MustCompile(`(?m)^\| (\d+)(?:–(\d+))? \| [ui](\d+) \| (\w+) \|`).FindAllStringSubmatch(section(t, heading), -1) {
			from, _ := strconv.Atoi(row[1])
			to, err := strconv.Atoi(row[2])
			if err != nil {
				to = from
			}
			bits, _ := strconv.Atoi(row[3])
			want, known := c.values[row[4]]
			if !known || (to-from+1)*8 != bits {
				t.Errorf("%s: field %s at %d–%d has %d bits on the page, and is known here: %v", heading, row[4], from, to, bits, known)
				continue
			}
			var got uint64
			for i := to; i >= from; i-- {
				got = got<<8 | uint64(c.message[i])
			}
			if got != want {
				t.Errorf("%s: field %s at %d–%d is %d, want %d", heading, row[4], from, to, got, want)
			}
			found++
		}
		if found != len(c.values) {
			t.Errorf("%s: %d of %d fields are on the page", heading, found, len(c.values))
		}
	}
	for heading, length := range map[string]int{"### HELLO": HelloLen, "### WELCOME": WelcomeLen, "### REFUSED": RefusedLen} {
		if want := fmt.Sprintf("%s, %d bytes\n", heading, length); !strings.Contains(page(t), want) {
			t.Errorf("the page has no heading %q", want)
		}
	}
}
