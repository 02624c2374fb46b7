// SPDX-License-Identifier: Apache-2.0

package p4

import (
	"context"
	"errors"
	"fmt"
	"math/big"
	"net"
	"path/filepath"
	"sync"
	"testing"

	config "github.com/p4lang/p4runtime/go/p4/config/v1"
	rt "github.com/p4lang/p4runtime/go/p4/v1"
	status "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"
)

// fake is a P4Runtime server that checks requests against its P4Info, and runs the program.
type fake struct {
	rt.UnimplementedP4RuntimeServer

	mu         sync.Mutex
	config     *rt.ForwardingPipelineConfig
	index      infoIndex
	program    *simpleSwitch
	primary    *rt.Uint128
	streams    map[rt.P4Runtime_StreamChannelServer]*rt.Uint128
	loads      int // number of loaded programs
	writes     int // number of calls of Write
	lose       int // number of packets of the control plane that are lost
	behind     int // number of them that wait for later ones
	queue      []*rt.PacketOut
	fail       codes.Code // of a write
	writesLeft int        // writes before the one that fails
	unheard    bool       // the one that fails is executed, and its answer is lost
	unique     bool       // only one controller may have an election ID
	deaf       int        // number of queries for the program that fail
}

// infoIndex finds parts of a P4Info by their numbers.
type infoIndex struct {
	of      *config.P4Info
	tables  map[uint32]*config.Table
	actions map[uint32]*config.Action
}

// info returns the index of the present P4Info.
func (f *fake) info() *infoIndex {
	if i := &f.index; i.of != f.config.P4Info {
		*i = infoIndex{f.config.P4Info, make(map[uint32]*config.Table), make(map[uint32]*config.Action)}
		for _, t := range i.of.Tables {
			i.tables[t.Preamble.Id] = t
		}
		for _, a := range i.of.Actions {
			i.actions[a.Preamble.Id] = a
		}
	}
	return &f.index
}

// startFake serves a fake on a Unix socket.
func startFake(tb testing.TB) (f *fake, target string, stop func()) {
	tb.Helper()
	f = newFake()
	path := filepath.Join(tb.TempDir(), "p4rt")
	stop = f.serve(tb, path)
	return f, "unix:" + path, stop
}

func newFake() *fake {
	return &fake{streams: make(map[rt.P4Runtime_StreamChannelServer]*rt.Uint128)}
}

// serve serves the fake until stop is called or the test ends.
func (f *fake) serve(tb testing.TB, path string) (stop func()) {
	tb.Helper()
	stop, err := f.listen(path)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(stop)
	return stop
}

// listen serves the fake until stop is called.
func (f *fake) listen(path string) (stop func(), err error) {
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	s := grpc.NewServer()
	rt.RegisterP4RuntimeServer(s, f)
	go func() { _ = s.Serve(l) }() // it ends with Stop
	return s.Stop, nil
}

// restart resets it to a switch that has just started.
func (f *fake) restart() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.config, f.program = nil, nil
}

func (f *fake) StreamChannel(stream rt.P4Runtime_StreamChannelServer) error {
	defer func() {
		f.mu.Lock()
		delete(f.streams, stream)
		f.mu.Unlock()
	}()
	for {
		m, err := stream.Recv()
		if err != nil {
			return nil
		}
		switch u := m.Update.(type) {
		case *rt.StreamMessageRequest_Arbitration:
			err = f.arbitrate(stream, u.Arbitration)
		case *rt.StreamMessageRequest_Packet:
			err = f.packet(stream, u.Packet)
		}
		if err != nil {
			return err
		}
	}
}

func higher(a, b *rt.Uint128) bool {
	return a.GetHigh() > b.GetHigh() || a.GetHigh() == b.GetHigh() && a.GetLow() > b.GetLow()
}

// arbitrate notifies all controllers which one is primary.
func (f *fake) arbitrate(stream rt.P4Runtime_StreamChannelServer, a *rt.MasterArbitrationUpdate) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, id := range f.streams {
		if f.unique && proto.Equal(id, a.ElectionId) {
			return grpcstatus.Error(codes.InvalidArgument, "Election id already exists")
		}
	}
	f.streams[stream] = a.ElectionId
	f.primary = nil
	for _, id := range f.streams {
		if f.primary == nil || higher(id, f.primary) {
			f.primary = id
		}
	}
	for s, id := range f.streams {
		code := codes.OK
		if higher(f.primary, id) {
			code = codes.AlreadyExists
		}
		if err := s.Send(&rt.StreamMessageResponse{Update: &rt.StreamMessageResponse_Arbitration{
			Arbitration: &rt.MasterArbitrationUpdate{ElectionId: f.primary, Status: &status.Status{Code: int32(code)}},
		}}); err != nil && s == stream { // others may have ended
			return err
		}
	}
	return nil
}

// packet passes a packet of the control plane through the program.
func (f *fake) packet(stream rt.P4Runtime_StreamChannelServer, p *rt.PacketOut) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.lose > 0 {
		f.lose--
		return nil
	}
	for f.queue = append(f.queue, p); len(f.queue) > f.behind; f.queue = f.queue[1:] {
		if err := f.inject(stream, f.queue[0]); err != nil {
			return err
		}
	}
	return nil
}

// inject passes a packet through the program. The caller holds the lock.
func (f *fake) inject(stream rt.P4Runtime_StreamChannelServer, p *rt.PacketOut) error {
	var data []byte
	for _, field := range packetFields(f.config.P4Info, "packet_out") {
		for _, m := range p.Metadata {
			if m.MetadataId == field.Id {
				data = append(data, new(big.Int).SetBytes(m.Value).FillBytes(make([]byte, field.Bitwidth/8))...)
			}
		}
	}
	for _, out := range f.program.process(cpuPort, append(data, p.Payload...)) {
		if out.Port != cpuPort {
			continue
		}
		in := &rt.PacketIn{Payload: out.Data}
		for _, field := range packetFields(f.config.P4Info, "packet_in") {
			n := int(field.Bitwidth / 8)
			in.Metadata = append(in.Metadata, &rt.PacketMetadata{MetadataId: field.Id, Value: number(in.Payload[:n]).canonicalBytes()})
			in.Payload = in.Payload[n:]
		}
		if err := stream.Send(&rt.StreamMessageResponse{Update: &rt.StreamMessageResponse_Packet{Packet: in}}); err != nil {
			return err
		}
	}
	return nil
}

const cpuPort = 510

func packetFields(info *config.P4Info, name string) []*config.ControllerPacketMetadata_Metadata {
	for _, m := range info.ControllerPacketMetadata {
		if m.Preamble.Name == name {
			return m.Metadata
		}
	}
	return nil
}

func (f *fake) GetForwardingPipelineConfig(context.Context, *rt.GetForwardingPipelineConfigRequest) (*rt.GetForwardingPipelineConfigResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.deaf > 0 {
		f.deaf--
		return nil, grpcstatus.Error(codes.DeadlineExceeded, "as the test wants")
	}
	if f.config == nil {
		return nil, grpcstatus.Error(codes.FailedPrecondition, "no forwarding pipeline config set")
	}
	return &rt.GetForwardingPipelineConfigResponse{Config: &rt.ForwardingPipelineConfig{
		P4Info: f.config.P4Info, Cookie: f.config.Cookie,
	}}, nil
}

func (f *fake) SetForwardingPipelineConfig(_ context.Context, r *rt.SetForwardingPipelineConfigRequest) (*rt.SetForwardingPipelineConfigResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.authorise(r.ElectionId); err != nil {
		return nil, err
	}
	program, err := loadSwitch(r.Config.P4DeviceConfig)
	if err != nil {
		return nil, grpcstatus.Error(codes.InvalidArgument, err.Error())
	}
	f.config, f.program = r.Config, program
	f.loads++
	return &rt.SetForwardingPipelineConfigResponse{}, nil
}

func (f *fake) authorise(id *rt.Uint128) error {
	if f.primary == nil || !proto.Equal(f.primary, id) {
		return grpcstatus.Error(codes.PermissionDenied, "not primary")
	}
	return nil
}

func (f *fake) Write(_ context.Context, r *rt.WriteRequest) (*rt.WriteResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.authorise(r.ElectionId); err != nil {
		return nil, err
	}
	f.writes++
	if f.writesLeft > 0 {
		f.writesLeft--
	} else if f.fail != codes.OK {
		code := f.fail
		f.fail = codes.OK
		for _, u := range r.Updates {
			if f.unheard {
				_ = f.update(u)
			}
		}
		return nil, refusals([]error{refusal(code, "as the test wants")})
	}
	// An update that fails does not prevent the others.
	results, failed := make([]error, len(r.Updates)), false
	for i, u := range r.Updates {
		results[i] = f.update(u)
		failed = failed || results[i] != nil
	}
	if failed {
		return nil, refusals(results)
	}
	return &rt.WriteResponse{}, nil
}

// refusal is the error of an update in a batch.
func refusal(code codes.Code, format string, args ...any) error {
	return grpcstatus.Errorf(code, format, args...)
}

// refusals is P4Runtime's report about a batch: one error for each update, including the successful
// ones (P4Runtime 1.4, §12.3).
func refusals(results []error) error {
	var all []protoadapt.MessageV1
	for _, err := range results {
		s := grpcstatus.Convert(err)
		all = append(all, &rt.Error{CanonicalCode: int32(s.Code()), Message: s.Message()})
	}
	s, err := grpcstatus.New(codes.Unknown, "a batch of updates failed").WithDetails(all...)
	if err != nil {
		return err
	}
	return s.Err()
}

func (f *fake) update(u *rt.Update) error {
	if g := u.Entity.GetPacketReplicationEngineEntry().GetMulticastGroupEntry(); g != nil {
		var all []copyTo
		for _, r := range g.Replicas {
			all = append(all, copyTo{Port: uint16(number(r.GetPort()).toUint64()), Instance: uint16(r.Instance)})
		}
		f.program.setGroup(uint16(g.MulticastGroupId), all)
		return nil
	}
	e := u.Entity.GetTableEntry()
	if e == nil {
		return refusal(codes.Unimplemented, "entity %v", u.Entity)
	}
	t, err := f.check(e, u.Type)
	if err != nil {
		return err
	}
	switch u.Type {
	case rt.Update_INSERT:
		err = f.program.insert(t.Preamble.Name, int(t.Size), f.entry(t, e))
	case rt.Update_MODIFY:
		err = f.program.modify(t.Preamble.Name, f.entry(t, e))
	case rt.Update_DELETE:
		err = f.program.delete(t.Preamble.Name, f.entry(t, e))
	}
	for target, code := range map[error]codes.Code{
		errExists: codes.AlreadyExists, errNoEntry: codes.NotFound, errTableFull: codes.ResourceExhausted,
	} {
		if errors.Is(err, target) {
			return refusal(code, "table %s: %v", t.Preamble.Name, err)
		}
	}
	return err
}

// entry translates a checked entry.
func (f *fake) entry(t *config.Table, m *rt.TableEntry) *tableEntry {
	e := &tableEntry{Priority: int(m.Priority)}
	for _, k := range t.MatchFields {
		key := matchKey{Value: numOf(match(m, k.Id))}
		switch k.GetMatchType() {
		case config.MatchField_TERNARY:
			key.Masked = true
			for _, f := range m.Match {
				if f.FieldId == k.Id {
					key.Mask = numOf(f.GetTernary().Mask)
				}
			}
		case config.MatchField_LPM:
			prefix := int(m.Match[0].GetLpm().GetPrefixLen())
			key.Mask, key.Masked, e.Priority = prefixMask(prefix, int(k.Bitwidth)), true, prefix
		}
		e.Keys = append(e.Keys, key)
	}
	if a := f.info().actions[m.GetAction().GetAction().GetActionId()]; a != nil {
		e.Action = a.Preamble.Name
	}
	for _, p := range m.GetAction().GetAction().GetParams() {
		e.Data = append(e.Data, numOf(p.Value))
	}
	return e
}

// check checks an entry against the P4Info.
func (f *fake) check(e *rt.TableEntry, u rt.Update_Type) (*config.Table, error) {
	if f.config == nil {
		return nil, refusal(codes.FailedPrecondition, "no program")
	}
	t := f.info().tables[e.TableId]
	if t == nil {
		return nil, refusal(codes.InvalidArgument, "no table %d", e.TableId)
	}
	ternary := false
	for _, k := range t.MatchFields {
		m := match(e, k.Id)
		ternary = ternary || k.GetMatchType() == config.MatchField_TERNARY
		if m == nil && k.GetMatchType() == config.MatchField_EXACT {
			return nil, refusal(codes.InvalidArgument, "%s: key %s is missing", t.Preamble.Name, k.Name)
		}
		if err := width(m, k.Bitwidth); err != nil {
			return nil, refusal(codes.InvalidArgument, "%s: key %s: %v", t.Preamble.Name, k.Name, err)
		}
	}
	if ternary != (e.Priority > 0) {
		return nil, refusal(codes.InvalidArgument, "%s: priority %d", t.Preamble.Name, e.Priority)
	}
	if u == rt.Update_DELETE {
		return t, nil
	}
	return t, f.checkAction(t, e.GetAction().GetAction())
}

func match(e *rt.TableEntry, id uint32) []byte {
	for _, m := range e.Match {
		if m.FieldId == id {
			switch t := m.FieldMatchType.(type) {
			case *rt.FieldMatch_Ternary_:
				return t.Ternary.Value
			case *rt.FieldMatch_Lpm:
				return t.Lpm.Value
			}
			return m.GetExact().GetValue()
		}
	}
	return nil
}

// width returns an error for a value that is too wide, or not encoded in the shortest form.
func width(v []byte, bits int32) error {
	switch {
	case v == nil:
		return nil
	case len(v) == 0 || len(v) > 1 && v[0] == 0:
		return fmt.Errorf("%x is not canonical", v)
	case len(v) > int(bits+7)/8 || len(v) == int(bits+7)/8 && bits%8 != 0 && v[0]>>(bits%8) != 0:
		return fmt.Errorf("%x does not fit %d bits", v, bits)
	}
	return nil
}

func (f *fake) checkAction(t *config.Table, a *rt.Action) error {
	allowed := false
	for _, r := range t.ActionRefs {
		allowed = allowed || r.Id == a.GetActionId() && r.Scope != config.ActionRef_DEFAULT_ONLY
	}
	if !allowed {
		return refusal(codes.InvalidArgument, "%s: action %d", t.Preamble.Name, a.GetActionId())
	}
	want := f.info().actions[a.ActionId]
	if want == nil {
		return nil
	}
	if len(want.Params) != len(a.Params) {
		return refusal(codes.InvalidArgument, "%s has %d parameters", want.Preamble.Name, len(want.Params))
	}
	for i, p := range want.Params {
		if a.Params[i].ParamId != p.Id {
			return refusal(codes.InvalidArgument, "%s: parameter %s is missing", want.Preamble.Name, p.Name)
		}
		if err := width(a.Params[i].Value, p.Bitwidth); err != nil {
			return refusal(codes.InvalidArgument, "%s: %s: %v", want.Preamble.Name, p.Name, err)
		}
	}
	return nil
}

func (f *fake) Read(r *rt.ReadRequest, stream rt.P4Runtime_ReadServer) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	answer := new(rt.ReadResponse)
	for _, e := range r.Entities {
		c := proto.CloneOf(e.GetCounterEntry())
		if c == nil || c.Index == nil {
			return grpcstatus.Errorf(codes.Unimplemented, "read of %v", e)
		}
		for _, info := range f.config.P4Info.Counters {
			if info.Preamble.Id != c.CounterId {
				continue
			}
			n, err := f.program.counter(info.Preamble.Name, int(c.Index.Index))
			if err != nil {
				return grpcstatus.Error(codes.OutOfRange, err.Error())
			}
			c.Data = &rt.CounterData{PacketCount: int64(n)}
		}
		answer.Entities = append(answer.Entities, &rt.Entity{Entity: &rt.Entity_CounterEntry{CounterEntry: c}})
	}
	return stream.Send(answer)
}
