package capture

import (
	"bufio"
	"fmt"
	"io"
	"runtime"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"github.com/libra-ina/libra/link"
)

// Writer writes frames as a pcapng section with one Ethernet interface, whose
// times are in nanoseconds (draft-ietf-opsawg-pcapng).
type Writer struct {
	buf   *bufio.Writer
	ng    *pcapgo.NgWriter
	start time.Time

	frames, lost uint64
}

// NewWriter writes the headers of a capture.
func NewWriter(w io.Writer, src Source) (*Writer, error) {
	// pcapgo's own buffer is small and cannot be set.
	buf := bufio.NewWriterSize(w, 1<<16)
	name := src.Interface
	if name == "" {
		name = src.Address.String()
	}
	ng, err := pcapgo.NewNgWriterInterface(buf, pcapgo.NgInterface{
		Name:                name,
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

// Write writes one frame: its direction as flags, and what was lost before it
// as drop count.
func (w *Writer) Write(f link.TappedFrame) error {
	options := pcapgo.NgPacketOptions{Flags: &pcapgo.NgEpbFlags{Direction: pcapgo.NgEpbFlag(f.Direction)}}
	if f.Lost > 0 {
		options.DropCount = &f.Lost
	}
	w.frames++
	w.lost += f.Lost
	err := w.ng.WritePacketWithOptions(gopacket.CaptureInfo{
		Timestamp: f.Time, CaptureLength: len(f.Data), Length: f.Len,
	}, f.Data, options)
	if err != nil {
		return fmt.Errorf("capture: %w", err)
	}
	return nil
}

// Flush hands over what is buffered.
func (w *Writer) Flush() error {
	if err := w.ng.Flush(); err != nil {
		return fmt.Errorf("capture: %w", err)
	}
	if err := w.buf.Flush(); err != nil {
		return fmt.Errorf("capture: %w", err)
	}
	return nil
}

// Close writes the interface's statistics, of which dropped is the number of all
// frames that were lost, and flushes. The writer below stays open.
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
