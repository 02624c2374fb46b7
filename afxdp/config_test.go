// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/google/go-cmp/cmp"

	"github.com/libra-ina/libra/internal/linux/testbed"
)

func TestConfigErrors(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{})
	u := newUMEM(t, UMEMConfig{Frames: 128})
	pool := newPool(t, u, 0)
	array, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer array.Close()
	closed := attach(t, ns, AttachConfig{Interface: "b", Match: MatchAll(), Queues: 1})
	if err := closed.Close(); err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for name, c := range map[string]struct {
		cfg  Config
		want error
	}{
		"ring size":       {Config{Interface: "a", RxRing: 100}, ErrConfig},
		"negative ring":   {Config{Interface: "a", TxRing: -2}, ErrConfig},
		"budget":          {Config{Interface: "a", TxRing: 64, TxBudget: 65}, ErrConfig},
		"fill":            {Config{Interface: "a", FillRing: 64, RxFrames: 65}, ErrConfig},
		"too few frames":  {Config{Interface: "a", RxFrames: 129}, ErrNoFrames},
		"small rings":     {Config{Interface: "a", RxRing: 16, MultiBuffer: true}, ErrConfig},
		"largest packet":  {Config{Interface: "a", MaxPacket: -1}, ErrConfig},
		"negative spin":   {Config{Interface: "a", Spin: -1}, ErrConfig},
		"negative wait":   {Config{Interface: "a", BindTimeout: -1}, ErrConfig},
		"negative queue":  {Config{Interface: "a", Queue: -1}, ErrConfig},
		"absent queue":    {Config{Interface: "a", Queue: 1}, ErrNoQueue},
		"absent device":   {Config{Interface: "nosuch"}, ErrInterfaceGone},
		"busy poll value": {Config{Interface: "a", BusyPoll: &BusyPoll{Budget: -1}}, ErrConfig},
		"mode":            {Config{Interface: "a", Mode: BindZeroCopy + 1}, ErrConfig},
		"other map":       {Config{Interface: "a", XSKMap: array}, ErrConfig},
		"no map":          {Config{Interface: "a", XSKMap: &ebpf.Map{}}, ErrConfig},
		"small map":       {Config{Interface: "a", XSKMap: closed.XSKMap(), Queue: 1}, ErrConfig},
		"closed map":      {Config{Interface: "a", XSKMap: closed.XSKMap()}, ErrConfig},
		"no socket":       {Config{Interface: "a", File: file}, ErrConfig},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := tryOpen(ns, pool, c.cfg)
			wantErr(t, err, c.want)
			if pool.Available() != 128 {
				t.Errorf("refused Open kept %d frames", 128-pool.Available())
			}
		})
	}
	if _, err := Open(nil, Config{Interface: "a"}); !errors.Is(err, ErrConfig) {
		t.Errorf("nil pool: %v", err)
	}
}

func TestConfigEdges(t *testing.T) {
	u := newUMEM(t, UMEMConfig{Frames: 2048, HugePages: HugePagesOff})
	pool := newPool(t, u, 0)
	for name, c := range map[string]struct {
		cfg   Config
		words string
	}{
		"defaults":         {Config{}, ""},
		"largest ring":     {Config{RxRing: 1 << 20}, ""},
		"larger ring":      {Config{RxRing: 1 << 21}, "Config.RxRing 2097152 is not a power of two in [1, 2^20]"},
		"smallest ring":    {Config{TxRing: 1}, ""},
		"odd ring":         {Config{FillRing: 3}, "Config.FillRing 3 is not"},
		"no ring":          {Config{CompletionRing: -1}, "Config.CompletionRing -1 is not"},
		"fragments":        {Config{RxRing: 64, TxRing: 64, FillRing: 64, CompletionRing: 64, MultiBuffer: true}, ""},
		"fragments, RX":    {Config{RxRing: 32, MultiBuffer: true}, "rings of at least 64 entries"},
		"fragments, TX":    {Config{TxRing: 32, MultiBuffer: true}, "rings of at least 64 entries"},
		"fragments, fill":  {Config{FillRing: 32, MultiBuffer: true}, "rings of at least 64 entries"},
		"fragments, done":  {Config{CompletionRing: 32, MultiBuffer: true}, "rings of at least 64 entries"},
		"last queue":       {Config{Queue: 65535}, ""},
		"queue":            {Config{Queue: 65536}, "Config.Queue 65536"},
		"negative queue":   {Config{Queue: -1}, "Config.Queue -1"},
		"budget":           {Config{TxRing: 64, TxBudget: 64}, ""},
		"budget and ring":  {Config{TxRing: 64, TxBudget: 65}, "Config.TxBudget 65 is not in [1, TxRing = 64]"},
		"negative budget":  {Config{TxBudget: -1}, "Config.TxBudget -1 is not in [1, TxRing = 2048]"},
		"fill":             {Config{FillRing: 64, RxFrames: 64}, ""},
		"fill and ring":    {Config{FillRing: 64, RxFrames: 65}, "Config.RxFrames 65 exceeds FillRing 64"},
		"all frames":       {Config{RxFrames: 2048}, ""},
		"too many frames":  {Config{FillRing: 4096, RxFrames: 2049}, "Config.RxFrames 2049, the pool has 2048"},
		"packet":           {Config{MaxPacket: -1}, "Config.MaxPacket -1"},
		"poll time":        {Config{BusyPoll: &BusyPoll{Time: time.Second, Budget: 65535}}, ""},
		"poll's long time": {Config{BusyPoll: &BusyPoll{Time: time.Second + 1}}, "Config.BusyPoll time 1.000000001s, budget 0"},
		"poll's past":      {Config{BusyPoll: &BusyPoll{Time: -1}}, "Config.BusyPoll time -1ns, budget 0"},
		"poll budget":      {Config{BusyPoll: &BusyPoll{Budget: 65536}}, "Config.BusyPoll time 0s, budget 65536"},
		"no poll budget":   {Config{BusyPoll: &BusyPoll{Budget: -1}}, "Config.BusyPoll time 0s, budget -1"},
	} {
		err := c.cfg.setDefaults(pool)
		if (err == nil) != (c.words == "") || err != nil && (!errors.Is(err, ErrConfig) && !errors.Is(err, ErrNoFrames) || !strings.Contains(err.Error(), c.words)) {
			t.Errorf("%s: %v, want %q", name, err, c.words)
		}
	}
	for _, c := range []struct{ given, want Config }{
		{Config{}, Config{RxRing: 2048, TxRing: 2048, FillRing: 2048, CompletionRing: 2048, RxFrames: 1024, TxBudget: 256, BindTimeout: 2 * time.Second}},
		{
			Config{RxRing: 2, TxRing: 128, FillRing: 4, CompletionRing: 8, RxFrames: 0, BindTimeout: 1},
			Config{RxRing: 2, TxRing: 128, FillRing: 4, CompletionRing: 8, RxFrames: 4, TxBudget: 128, BindTimeout: 1},
		},
		{
			Config{RxRing: 2, TxRing: 2, FillRing: 4, CompletionRing: 8, RxFrames: -5, TxBudget: 1, BindTimeout: 1},
			Config{RxRing: 2, TxRing: 2, FillRing: 4, CompletionRing: 8, RxFrames: 0, TxBudget: 1, BindTimeout: 1},
		},
	} {
		if err := c.given.setDefaults(pool); err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff(c.want, c.given); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	for _, c := range []struct {
		poll *BusyPoll
		want time.Duration
	}{{nil, 0}, {&BusyPoll{}, 20 * time.Microsecond}, {&BusyPoll{Time: 1}, 1}} {
		if got := c.poll.duration(); got != c.want {
			t.Errorf("%+v: %v, want %v", c.poll, got, c.want)
		}
	}
}

func TestUMEMConfigErrors(t *testing.T) {
	for name, cfg := range map[string]UMEMConfig{
		"frame size":        {FrameSize: 3000},
		"small frame":       {FrameSize: 1024},
		"frame beyond page": {FrameSize: 1 << 20},
		"frames":            {Frames: -1},
		"headroom":          {Headroom: 2000},
		"checksum":          {SoftwareChecksum: true},
		"interface path":    {NUMAOf: "../lo"},
		"pages":             {HugePages: HugePagesOff + 1},
	} {
		_, err := NewUMEM(cfg)
		if !errors.Is(err, ErrConfig) {
			t.Errorf("%s: error is %v, want ErrConfig", name, err)
		}
	}
	_, err := NewUMEM(UMEMConfig{NUMAOf: "nosuch"})
	wantErr(t, err, ErrInterfaceGone)
	// Refused or granted, depending on the machine's limits; never silently replaced.
	u, err := NewUMEM(UMEMConfig{Frames: 1, HugePages: HugePagesRequire})
	switch {
	case err != nil:
		wantErr(t, err, ErrNoHugePages)
	default:
		if u.Pages() != PagesHuge {
			t.Errorf("pages are %v", u.Pages())
		}
		u.Close()
	}
	u = newUMEM(t, UMEMConfig{HugePages: HugePagesOff, NUMAOf: "lo"})
	if u.Pages() == PagesHuge {
		t.Error("huge pages although they are off")
	}
	p := newPool(t, u, 4000)
	if _, err := u.NewPool(97); !errors.Is(err, ErrNoFrames) {
		t.Errorf("pool of more frames than are left: %v", err)
	}
	newPool(t, u, 96)
	if _, err := u.NewPool(0); !errors.Is(err, ErrNoFrames) {
		t.Errorf("pool of no frames: %v", err)
	}
	if p.Available() != 4000 {
		t.Errorf("pool has %d frames, want 4000", p.Available())
	}
}

func TestUMEMConfigEdges(t *testing.T) {
	for name, c := range map[string]struct {
		cfg   UMEMConfig
		words string
	}{
		"one frame":      {UMEMConfig{Frames: 1}, ""},
		"no frame":       {UMEMConfig{Frames: -1}, "UMEMConfig.Frames -1 is not in [1, 2^24]"},
		"many frames":    {UMEMConfig{Frames: 1<<24 + 1}, "UMEMConfig.Frames 16777217 is not in [1, 2^24]"},
		"page":           {UMEMConfig{Frames: 1, FrameSize: 4096}, ""},
		"beyond a page":  {UMEMConfig{Frames: 1, FrameSize: 8192}, "UMEMConfig.FrameSize 8192 is not a power of two in [2048, 4096]"},
		"small":          {UMEMConfig{Frames: 1, FrameSize: 1024}, "UMEMConfig.FrameSize 1024 is not"},
		"odd":            {UMEMConfig{Frames: 1, FrameSize: 3072}, "UMEMConfig.FrameSize 3072 is not"},
		"headroom":       {UMEMConfig{Frames: 1, Headroom: 2048 - 256 - 14 - 1}, ""},
		"all headroom":   {UMEMConfig{Frames: 1, Headroom: 2048 - 256 - 14}, "UMEMConfig.Headroom 1778 leaves no room for packets in frames of 2048"},
		"no headroom":    {UMEMConfig{Frames: 1, Headroom: -1}, "UMEMConfig.Headroom -1 leaves"},
		"checksum":       {UMEMConfig{Frames: 1, SoftwareChecksum: true}, "SoftwareChecksum needs TxMetadata"},
		"checksum, meta": {UMEMConfig{Frames: 1, SoftwareChecksum: true, TxMetadata: true}, ""},
	} {
		c.cfg.HugePages = HugePagesOff
		u, err := NewUMEM(c.cfg)
		if err == nil {
			if want := map[bool]int{true: TxMetaSize}[c.cfg.TxMetadata]; u.txMeta != want {
				t.Errorf("%s: %d bytes of metadata", name, u.txMeta)
			}
			err = errors.Join(u.Close(), u.Close())
		}
		if (err == nil) != (c.words == "") || err != nil && (!errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), c.words)) {
			t.Errorf("%s: %v, want %q", name, err, c.words)
		}
	}
	u := newUMEM(t, UMEMConfig{HugePages: HugePagesOff})
	if u.Frames() != 4096 || u.FrameSize() != 2048 || u.Pages() != PagesNormal {
		t.Errorf("%d frames of %d bytes on %v pages", u.Frames(), u.FrameSize(), u.Pages())
	}
	for _, n := range []int{-1, 4097} {
		if _, err := u.NewPool(n); !errors.Is(err, ErrNoFrames) {
			t.Errorf("a pool of %d: %v", n, err)
		}
	}
}
