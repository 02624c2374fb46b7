// SPDX-License-Identifier: Apache-2.0

package control

import (
	"crypto/subtle"
	"net/netip"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/control/access"
	pb "github.com/libra-ina/libra/control/controlpb"
)

// DefaultGrace is how long an admission outlives its broken connection.
const DefaultGrace = 3 * time.Second

// ending is how an admission ended.
type ending int

const (
	left      ending = iota // the sender left on purpose
	unused                  // it left before it had sent anything, as if it had not joined
	vanished                // its connection broke and was not restored
	restarted               // the sender joined again, without its token
	away                    // the sender left on purpose, and may come back
)

// roster holds the admissions of one job's senders at one receiver. Its lock is held while the
// receiver admits and withdraws, so that a job waits only for its own senders.
type roster struct {
	grace time.Duration
	// epoch returns the epoch of the next admission, which no earlier admission of the receiver has
	// had: a frame of a sender's earlier admission is refused because of it. An admission that
	// succeeds takes it; one that fails leaves it to the next.
	epoch func() uint16
	take  func(epoch uint16)
	// may refuses a sender before anything is changed; replaces is its earlier admission, or nil.
	may      func(m, replaces *member) error
	admit    func(*member) error
	withdraw func(*member, ending)
	random   access.Random

	mu      chanMutex
	members map[uint16]*member
	closed  error // why the receiver has ended, or nil
}

// chanMutex is a lock that is held while its holder waits for others. It is a channel with one
// place, so that a goroutine that waits for it counts as blocked in a simulation's virtual time.
type chanMutex chan struct{}

func (m chanMutex) Lock()   { m <- struct{}{} }
func (m chanMutex) Unlock() { <-m }

// member is one admission of one sender.
type member struct {
	aggregator.SenderConfig
	presence
	token access.Secret

	attempt []byte            // that led to the admission
	agree   map[string]string // what it presented of the configuration

	keepsLog bool
	rewinds  bool   // it joins again after a rewind
	before   uint64 // rewinds before its admission
	// Instances of generations that have ended: for whose mark it has asked, and from which on it has
	// settled. The generation's lock guards them.
	asked, left uint64
	adopted     uint64           // version of the newest plan that it follows alone; so guarded, too
	wasAway     bool             // it had left, and could come back, when it joined
	departure   *pb.LeaveRequest // how it left; nil: it has not
}

// enterSender begins an admission, or resumes that of a token or an attempt, and begins its
// connection.
func (r *roster) enterSender(s aggregator.SenderConfig, req *pb.JoinRequest) (*member, *connection, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(req.GetToken()) > 0 {
		m := r.members[s.ID]
		switch {
		case r.closed != nil:
			return nil, nil, r.endedError()
		case m == nil || !m.token.Matches(req.Token):
			return nil, nil, status.Errorf(codes.PermissionDenied,
				"sender %d: its admission has ended: it was not connected for %v, or was restarted", s.ID, r.grace)
		}
		return m, m.beginConnection(errReplaced), nil
	}
	m := newMember(s, req)
	earlier, err := r.examineSender(m)
	if err != nil {
		return nil, nil, err
	}
	if earlier.isOf(m) {
		return earlier, earlier.beginConnection(errReplaced), nil
	}
	m.token = r.random.Secret()
	m.presence = newPresence(r.mu, r.grace, func() { r.dropAdmission(m, vanished) })
	if earlier != nil {
		r.dropAdmission(earlier, restarted)
	}
	m.Epoch = r.epoch()
	if err := r.admit(m); err != nil {
		return nil, nil, err
	}
	r.take(m.Epoch)
	r.members[s.ID] = m
	return m, m.beginConnection(nil), nil
}

// checkSender reports whether a sender could begin an admission now, and changes nothing.
func (r *roster) checkSender(s aggregator.SenderConfig, req *pb.JoinRequest) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, err := r.examineSender(newMember(s, req))
	return err
}

func newMember(s aggregator.SenderConfig, req *pb.JoinRequest) *member {
	return &member{SenderConfig: s, attempt: req.GetAttempt(), agree: req.GetAgree(), keepsLog: req.GetKeepsLog(),
		rewinds: req.GetRewinds()}
}

// isOf reports whether an admission came of the same attempt: its sender has not got the answer.
func (m *member) isOf(again *member) bool {
	return m != nil && len(m.attempt) > 0 && m.IP == again.IP && subtle.ConstantTimeCompare(m.attempt, again.attempt) == 1
}

// examineSender refuses a sender that may not begin an admission. Otherwise it returns the earlier
// one that the new one would replace, or nil. The caller holds the lock.
func (r *roster) examineSender(m *member) (earlier *member, err error) {
	earlier = r.members[m.ID]
	switch {
	case r.closed != nil:
		return nil, r.endedError()
	case earlier == nil:
	case earlier.isOf(m):
		return earlier, nil
	case earlier.isConnected():
		return nil, status.Errorf(codes.AlreadyExists,
			"worker %d is already in the job, from %v: start each worker once, with its own id", m.ID, earlier.IP)
	case earlier.IP != m.IP:
		return nil, status.Errorf(codes.AlreadyExists,
			"worker %d was in the job just now, from %v, and may come back until %v from now", m.ID, earlier.IP,
			time.Until(earlier.until).Round(time.Millisecond))
	}
	return earlier, r.may(m, earlier)
}

// endedError is the answer to a sender of a job that has ended.
func (r *roster) endedError() error {
	return status.Errorf(codes.Aborted, "the job has ended: %s", status.Convert(r.closed).Message())
}

// connectionBroke records that a connection broke.
func (r *roster) connectionBroke(m *member, c *connection) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m.connectionBroke(c)
}

// memberOf returns the admission to which a call belongs.
func (r *roster) memberOf(sender uint32, token []byte) (*member, error) {
	id := uint16(sender)
	if uint32(id) != sender {
		return nil, status.Errorf(codes.InvalidArgument, "sender %d does not fit 16 bits", sender)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.findAdmission(id, token)
}

func (r *roster) findAdmission(id uint16, token []byte) (*member, error) {
	m := r.members[id]
	if m == nil || !m.token.Matches(token) {
		return nil, status.Errorf(codes.PermissionDenied, "sender %d has not joined with this token, or its admission has ended: it was not connected for %v, or was restarted", id, r.grace)
	}
	return m, nil
}

// endAdmission ends an admission at once.
func (r *roster) endAdmission(req *pb.LeaveRequest) error {
	if _, err := r.memberOf(req.Sender, req.Token); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	m, err := r.findAdmission(uint16(req.Sender), req.Token)
	if err != nil {
		return err
	}
	m.departure = req
	how := left
	switch {
	case req.Unused:
		how = unused
	case req.Back:
		how = away
	}
	r.dropAdmission(m, how)
	return nil
}

// dropAdmission ends an admission. The caller holds the lock.
func (r *roster) dropAdmission(m *member, how ending) {
	delete(r.members, m.ID)
	m.stopPresence(nil)
	r.withdraw(m, how)
}

// endAdmissions ends all admissions without withdrawing them, because their receiver ends.
func (r *roster) endAdmissions(why error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = why
	for _, m := range r.members {
		m.stopPresence(why)
	}
	clear(r.members)
}

func (r *roster) admissionCount() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.members)
}

// senderAddress reads a sender's number and addresses from a request.
func senderAddress(sender uint32, ip, mac []byte, port uint32) (aggregator.SenderConfig, error) {
	s := aggregator.SenderConfig{ID: uint16(sender), Port: uint16(port)}
	refuse := func(format string, args ...any) (aggregator.SenderConfig, error) {
		return s, status.Errorf(codes.InvalidArgument, "sender %d"+format, append([]any{sender}, args...)...)
	}
	if uint32(s.ID) != sender {
		return refuse(" does not fit 16 bits")
	}
	if uint32(s.Port) != port {
		return refuse(": port %d does not fit 16 bits", port)
	}
	addr, ok := netip.AddrFromSlice(ip)
	if !ok {
		return refuse(": ip: an address of %d bytes; it must have 4 or 16", len(ip))
	}
	s.IP = addr.Unmap()
	if n := len(mac); n != 0 && n != len(s.MAC) {
		return refuse(": mac: an address of %d bytes; it must have 6, or none over UDP sockets", n)
	}
	copy(s.MAC[:], mac)
	return s, nil
}
