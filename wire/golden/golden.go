// SPDX-License-Identifier: Apache-2.0

// Package golden reads the golden frames: complete Ethernet frames with a description of their
// contents. They are test vectors for any implementation of the protocol, in any language.
//
// A directory of golden frames holds index.json, which is an array of [Case], and for each case
// NAME.hex: hexadecimal bytes, of which lines that begin with # are comments.
//
// It is for the tests of data planes and transports, not a stable interface: it changes with any
// release.
package golden

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Case is one frame and how a receiver on UDP port 19522 must decode it.
type Case struct {
	Name  string `json:"name"`
	About string `json:"about"`

	// Frame is the state of the Ethernet, IP and UDP headers: "ok", "foreign" (not Libra's),
	// "truncated" or "checksum" (damaged). The other fields are set only if it is "ok".
	Frame string    `json:"frame"`
	Src   *Endpoint `json:"src,omitempty"`
	Dst   *Endpoint `json:"dst,omitempty"`

	// Payload is the state of the UDP payload: "ok", "truncated" (shorter than the header),
	// "version" (a different protocol version) or "length" (the body has a wrong length). The
	// header is set unless Payload is "truncated", a body only if it is "ok".
	Payload string   `json:"payload,omitempty"`
	Header  *Header  `json:"header,omitempty"`
	Stripes []Stripe `json:"stripes,omitempty"` // HOT, and ACK with sums
	Scale   *Scale   `json:"scale,omitempty"`   // SCALE, and ACK with a decision
	Cover   string   `json:"cover,omitempty"`   // ACK with a cover: hexadecimal
	Taken   *Taken   `json:"taken,omitempty"`   // TAKEN, and ACK that confirms it
	Rows    *Rows    `json:"rows,omitempty"`    // COLD, PULL, ROWS, FIND, FOUND, COLD_AT and SUMS
	Step    *Step    `json:"step,omitempty"`    // STEP
	Sums    *Sums    `json:"sums,omitempty"`    // SUMS, with Rows
	Block   *Block   `json:"block,omitempty"`   // BLOCK
	Refusal *Refusal `json:"refusal,omitempty"` // ERROR

	Bytes []byte `json:"-"` // the frame itself, without frame check sequence
}

// Endpoint is an address of the frame's Ethernet, IP and UDP headers.
type Endpoint struct {
	MAC  string `json:"mac"`
	IP   string `json:"ip"`
	Port uint16 `json:"port"`
}

// Header is the 12-byte header.
type Header struct {
	Type   string `json:"type"`
	Flags  string `json:"flags"` // names joined by |
	Job    uint16 `json:"job"`
	Sender uint16 `json:"sender"`
	Epoch  uint16 `json:"epoch"`
	Seq    uint32 `json:"seq"`
}

// Stripe is the mask of a stripe and the lanes in it.
type Stripe struct {
	Mask string `json:"mask"` // with the page, in hexadecimal
	// Pairs are "lane slot bits", the bits of the float32 in hexadecimal.
	Pairs []string `json:"pairs"`
}

// Rows is the body of a frame of rows.
type Rows struct {
	Count int      `json:"count"`
	Dim   int      `json:"dim"`
	Keys  []string `json:"keys,omitempty"` // hexadecimal
	// Numbering, in hexadecimal, and Numbers are those of FOUND and COLD_AT.
	Numbering string   `json:"numbering,omitempty"`
	Numbers   []uint32 `json:"numbers,omitempty"`
	Rows      []string `json:"values,omitempty"` // per row: float32 bits in hexadecimal, with spaces between
	// Codes, in hexadecimal, are those of a frame with CODED; Rows are then what they decode to with
	// bound 10 and scale 0.
	Codes string `json:"codes,omitempty"`
}

// Scale is the body of a SCALE frame and of the ACK that answers it with a
// decision.
type Scale struct {
	Iteration uint32 `json:"iteration"`
	Exponent  uint8  `json:"exponent"`
}

// Taken is the body of a TAKEN frame and of the ACK that confirms it.
type Taken struct {
	First uint16 `json:"first"`
	Round uint32 `json:"round"`
}

// Step is the body of a STEP frame.
type Step struct {
	Step        uint64 `json:"step"`
	HotSent     uint32 `json:"hot_sent"`
	HotAnswered uint32 `json:"hot_answered"`
	First       uint32 `json:"first"`
	Room        uint32 `json:"room"`
}

// Sums are the fields of a SUMS frame other than its rows.
type Sums struct {
	Step  uint64 `json:"step"`
	Rows  uint32 `json:"rows"`
	First uint32 `json:"first"`
	Width int    `json:"width"`
}

// Block is the body of a BLOCK frame.
type Block struct {
	Operation uint32 `json:"operation"`
	First     uint32 `json:"first"`
	Count     uint16 `json:"count"`
	Step      uint16 `json:"step"`
	Bound     uint8  `json:"bound"`
	Scale     int8   `json:"scale"`
	Values    string `json:"values,omitempty"` // float32 bits in hexadecimal, with spaces between
	// Codes, in hexadecimal, are those of a frame whose bound is not 0; Values are what they decode
	// to.
	Codes string `json:"codes,omitempty"`
}

// Refusal is the body of an ERROR frame.
type Refusal struct {
	Code  uint16 `json:"code"`
	Text  string `json:"text"`
	Index uint16 `json:"index"`
	Value uint32 `json:"value"`
}

// Load reads the cases of a directory and their frames.
func Load(dir string) ([]Case, error) {
	index, err := os.ReadFile(filepath.Join(dir, "index.json"))
	if err != nil {
		return nil, fmt.Errorf("golden frames: %w", err)
	}
	var cases []Case
	if err := json.Unmarshal(index, &cases); err != nil {
		return nil, fmt.Errorf("golden frames: index.json: %w", err)
	}
	for i := range cases {
		c := &cases[i]
		text, err := os.ReadFile(filepath.Join(dir, c.Name+".hex"))
		if err != nil {
			return nil, fmt.Errorf("golden frames: %w", err)
		}
		if c.Bytes, err = parse(string(text)); err != nil {
			return nil, fmt.Errorf("golden frames: %s.hex: %w", c.Name, err)
		}
	}
	return cases, nil
}

func parse(text string) ([]byte, error) {
	var digits strings.Builder
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "#") {
			for _, field := range strings.Fields(line) {
				digits.WriteString(field)
			}
		}
	}
	return hex.DecodeString(digits.String())
}
