package aggregator

import "maps"

// State is a copy of all that frames can change in a model, but for counters.
type State struct {
	Banks   [][]int64
	Frames  []uint64
	Senders []map[uint16]sender
	Groups  [][]group
	Scales  []negotiation
}

// State returns a copy of the model's state.
func (m *Model) State() State {
	var s State
	for _, j := range m.jobs {
		if j == nil {
			continue
		}
		for _, b := range j.banks {
			s.Banks = append(s.Banks, append([]int64(nil), b.slots...))
			s.Frames = append(s.Frames, b.frames, b.pairs)
		}
		senders := make(map[uint16]sender)
		for id, p := range maps.All(j.senders) {
			c := *p
			c.counters = SenderCounters{}
			senders[id] = c
		}
		s.Senders = append(s.Senders, senders)
		s.Groups = append(s.Groups, append([]group(nil), j.groups...))
		s.Scales = append(s.Scales, j.scale)
	}
	return s
}
