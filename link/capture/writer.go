// SPDX-License-Identifier: Apache-2.0

package capture

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"fmt"
	"io"
	"runtime"
	"time"

	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"

	"github.com/libra-ina/libra/link"
)

// Writer writes frames as a pcapng section with one Ethernet interface and times in nanoseconds
// (draft-ietf-opsawg-pcapng).
type Writer struct {
	buf   *bufio.Writer
	ng    *pcapgo.NgWriter // uses buf as its buffer
	start time.Time

	frames, lost  uint64
	head, options []byte // scratch space
}

// NewWriter writes the headers of a capture.
func NewWriter(w io.Writer, src Source) (*Writer, error) {
	// Large enough that pcapgo does not create another buffer, see bufio.NewWriter.
	buf := bufio.NewWriterSize(w, 1<<16)
	ng, err := pcapgo.NewNgWriterInterface(buf, pcapgo.NgInterface{
		Name:                cmp.Or(src.Interface, src.Address.String()),
		Description:         src.String(),
		OS:                  runtime.GOOS,
		LinkType:            layers.LinkTypeEthernet,
		SnapLength:          link.TapSnapLen,
		TimestampResolution: 9,
	}, pcapgo.NgWriterOptions{SectionInfo: pcapgo.NgSectionInfo{
		Hardware:    runtime.GOARCH,
		OS:          runtime.GOOS,
		Application: "libra capture",
		Comment:     src.comment(),
	}})
	if err != nil {
		return nil, fmt.Errorf("capture: %w", err)
	}
	return &Writer{buf: buf, ng: ng, start: time.Now()}, nil
}

// Numbers of the format: the type of an enhanced packet block and its options.
const (
	packetBlock     = 6
	optionEnd       = 0
	optionFlags     = 2 // bits 0-1: direction
	optionDropCount = 4
)

// Write writes one frame: its direction as flags, and the frames lost before it as drop count.
// pcapgo does not support packet options, so the block is written here.
func (w *Writer) Write(f link.TappedFrame) error {
	w.frames++
	w.lost += f.Lost
	o := w.options[:0]
	o = append(o, make([]byte, -len(f.Data)&3)...) // the data's padding
	o = binary.LittleEndian.AppendUint32(o, optionFlags|4<<16)
	o = binary.LittleEndian.AppendUint32(o, uint32(f.Direction))
	if f.Lost > 0 {
		o = binary.LittleEndian.AppendUint32(o, optionDropCount|8<<16)
		o = binary.LittleEndian.AppendUint64(o, f.Lost)
	}
	o = binary.LittleEndian.AppendUint32(o, optionEnd)
	length := uint32(28 + len(f.Data) + len(o) + 4)
	w.options = binary.LittleEndian.AppendUint32(o, length)

	at := uint64(f.Time.UnixNano())
	w.head = w.head[:0]
	for _, v := range []uint32{packetBlock, length, 0, uint32(at >> 32), uint32(at), uint32(len(f.Data)), uint32(f.Len)} {
		w.head = binary.LittleEndian.AppendUint32(w.head, v)
	}
	for _, part := range [][]byte{w.head, f.Data, w.options} {
		if _, err := w.buf.Write(part); err != nil {
			return fmt.Errorf("capture: %w", err)
		}
	}
	return nil
}

// Flush writes the buffered data.
func (w *Writer) Flush() error {
	if err := w.buf.Flush(); err != nil {
		return fmt.Errorf("capture: %w", err)
	}
	return nil
}

// Close writes the interface's statistics, with dropped, the number of all lost frames, and
// flushes. The writer below stays open.
func (w *Writer) Close(dropped uint64) error {
	now := time.Now()
	err := w.ng.WriteInterfaceStats(0, pcapgo.NgInterfaceStatistics{
		LastUpdate: now, StartTime: w.start, EndTime: now,
		PacketsReceived: w.frames + dropped, PacketsDropped: dropped,
	})
	if err != nil {
		return fmt.Errorf("capture: %w", err)
	}
	return w.Flush()
}
