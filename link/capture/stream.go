// SPDX-License-Identifier: Apache-2.0

package capture

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/libra-ina/libra/link"
)

// protocol is the version of the protocol between the ends of a capture: a request and an answer,
// each a line of JSON, then records up to the end.
const protocol = 1

// lineLimit limits the length of a request or an answer.
const lineLimit = 4096

type request struct {
	Protocol int `json:"protocol"`
	// Frames requests frames, not only the source.
	Frames bool `json:"frames"`
}

type answer struct {
	Protocol int    `json:"protocol"`
	Error    string `json:"error,omitempty"`
	Denied   bool   `json:"denied,omitempty"` // because of the peer's user
	Source   Source `json:"source"`
}

func writeLine(w io.Writer, v any) error { return json.NewEncoder(w).Encode(v) }

// readLine reads one line of JSON. The reader's buffer has lineLimit bytes.
func readLine(r *bufio.Reader, v any) error {
	line, err := r.ReadSlice('\n')
	if err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return err
	}
	return json.Unmarshal(line, v)
}

// A record is a head of recordLen bytes, big-endian, and a frame's bytes:
//
//	0  kind
//	1  direction
//	2  bytes that follow (2)
//	4  bytes on the wire (4)
//	8  time, nanoseconds since 1970 (8)
//	16 frames lost since the last record (8); in the last record, in all
const recordLen = 24

const (
	kindFrame = 1
	kindEnd   = 2 // the link was closed, or the reader asked for the end
)

// errMalformed means that the other end does not use this protocol.
var errMalformed = errors.New("malformed record")

func writeFrame(w io.Writer, f link.TappedFrame) error {
	var head [recordLen]byte
	head[0], head[1] = kindFrame, byte(f.Direction)
	binary.BigEndian.PutUint16(head[2:], uint16(len(f.Data)))
	binary.BigEndian.PutUint32(head[4:], uint32(f.Len))
	binary.BigEndian.PutUint64(head[8:], uint64(f.Time.UnixNano()))
	binary.BigEndian.PutUint64(head[16:], f.Lost)
	if _, err := w.Write(head[:]); err != nil {
		return err
	}
	_, err := w.Write(f.Data)
	return err
}

func writeEnd(w io.Writer, dropped uint64) error {
	var head [recordLen]byte
	head[0] = kindEnd
	binary.BigEndian.PutUint64(head[16:], dropped)
	_, err := w.Write(head[:])
	return err
}

// readRecord reads a frame into buf, which has transport.TapSnapLen bytes; or the end, where the
// frame's Lost counts all lost frames.
func readRecord(r io.Reader, buf []byte) (f link.TappedFrame, end bool, err error) {
	var head [recordLen]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return f, false, err
	}
	f.Lost = binary.BigEndian.Uint64(head[16:])
	if head[0] == kindEnd {
		return f, true, nil
	}
	f.Direction = link.Direction(head[1])
	f.Len = int(binary.BigEndian.Uint32(head[4:]))
	f.Time = time.Unix(0, int64(binary.BigEndian.Uint64(head[8:])))
	n := int(binary.BigEndian.Uint16(head[2:]))
	if head[0] != kindFrame || n > len(buf) || n > f.Len {
		return f, false, fmt.Errorf("%w: kind %d, %d of %d bytes", errMalformed, head[0], n, f.Len)
	}
	f.Data = buf[:n]
	if _, err := io.ReadFull(r, f.Data); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return f, false, err
	}
	return f, false, nil
}
