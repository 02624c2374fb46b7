// SPDX-License-Identifier: Apache-2.0

package control

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"time"

	"google.golang.org/grpc"

	"github.com/libra-ina/libra/control/access"
	pb "github.com/libra-ina/libra/control/controlpb"
	"github.com/libra-ina/libra/wire"
)

// JoinConfig names the worker, the job and the addresses of the job's services. Fields without a
// default are required.
type JoinConfig struct {
	Job    uint16
	Worker uint16
	// From is the source of the worker's frames: an address of one host, and the port.
	From netip.AddrPort
	// MAC is the Ethernet address of the frames; nil over UDP sockets.
	MAC []byte
	// HotSet is the fingerprint of the worker's hot set.
	HotSet []byte
	// Pages is the number of pages of the hot set's scalars; 0 means 1.
	Pages int
	// Shares are the jobs among which the hot set is divided at the aggregator, of the share with
	// index 0, which is Job, on; nil if Job has everything. They replace HotSet and Pages at the
	// aggregator. Such a worker keeps no log.
	Shares []Share
	// Plan, if not nil, turns the plan of the server with index 0 into Shares, which are at several
	// aggregators: then Shares must be nil. Its error ends Join. See [Membership.FollowPlan], which
	// calls it for later plans.
	Plan func(*pb.Plan) ([]Share, error)
	// Agree has the values on which the worker and the parameter servers must agree, field by field;
	// see [ParameterServerConfig]. It may be nil. Join adds [IndexField], if there are several
	// servers, and [TrainingField].
	Agree map[string]string

	Server, Aggregator netip.AddrPort // control services
	// Standbys are those of the aggregators at which the job may go on, in the order of the servers'
	// configuration.
	Standbys []netip.AddrPort
	// NoServer means that the job has no parameter server, but an owner that takes its harvests (see
	// [Taker]). Join then waits until the owner has created the job.
	NoServer bool
	// MoreServers are the job's servers after Server, which has index 0, in the order of their
	// indices.
	MoreServers []netip.AddrPort

	// Security protects the connections; the zero value is plain TCP.
	Security access.Security
	// Limit bounds the wait for each service, and for the end of an earlier admission of this
	// worker; 0 means [DefaultJoinLimit].
	Limit time.Duration
	// Begin, if not nil, is called before the worker joins any service, with [Membership.Trainings]
	// and the first step at each server, by index. If it returns an error, that ends Join, and nothing
	// has changed at the services.
	Begin func(trainings []string, firstSteps []uint64) error
	// KeepsLog means that the worker can keep a log; see [Membership.KeepsLog].
	KeepsLog bool
	// Rewinds means that the worker joins again when its admission ends with [ErrRewound], and repeats
	// the steps from [Membership.FirstStep] on.
	Rewinds bool
	// Dial are options in addition to those of all control connections.
	Dial []grpc.DialOption
	// Lost is called with the reason, at most once and not after [Membership.Leave], if a service
	// ends the admission, or cannot be reached for its grace period. Calls of the membership then
	// fail by themselves, but those of a transport.Worker do not: pass the context.CancelCauseFunc
	// of their context. It may be nil.
	Lost func(error)
	// Random is the source of what distinguishes this attempt to join; nil means crypto/rand.
	Random io.Reader
	// Log receives messages about waiting; nil means [slog.Default].
	Log *slog.Logger

	attempt []byte
	run     uint64 // of the server that is joined, when it was asked; 0: not known
}

// DefaultJoinLimit is how long a worker waits for services that are not available yet.
const DefaultJoinLimit = 30 * time.Second

func (c *JoinConfig) logger() *slog.Logger { return cmp.Or(c.Log, slog.Default()) }

// check refuses configurations that no service could accept, or for which Join would wait in vain.
func (c *JoinConfig) check() error {
	type address struct {
		field string
		addr  netip.AddrPort
	}
	addresses := []address{{"From", c.From}, {"Aggregator", c.Aggregator}}
	for i, addr := range c.Standbys {
		addresses = append(addresses, address{fmt.Sprintf("Standbys[%d]", i), addr})
	}
	switch given := c.Server.IsValid() || len(c.MoreServers) > 0; {
	case c.NoServer && c.KeepsLog:
		return errors.New("control: JoinConfig.NoServer is set, and so is KeepsLog: without a server nothing ends the log")
	case c.NoServer && given:
		return errors.New("control: JoinConfig.NoServer is set, and so is Server or MoreServers: leave one out")
	case !c.NoServer:
		addresses = append(addresses, address{"Server", c.Server})
	}
	for i, addr := range c.MoreServers {
		addresses = append(addresses, address{fmt.Sprintf("MoreServers[%d]", i), addr})
	}
	for _, a := range addresses {
		switch ip := a.addr.Addr().Unmap(); {
		case !a.addr.IsValid():
			return fmt.Errorf("control: JoinConfig.%s is missing: give an address and a port", a.field)
		case a.addr.Port() == 0:
			return fmt.Errorf("control: JoinConfig.%s %v has no port", a.field, a.addr)
		case ip.IsUnspecified() || ip.IsMulticast():
			return fmt.Errorf("control: JoinConfig.%s %v is not the address of one host", a.field, a.addr)
		}
	}
	if len(c.HotSet) == 0 {
		return errors.New("control: JoinConfig.HotSet is missing: give the fingerprint of the worker's hot set")
	}
	if err := c.checkShares(); err != nil {
		return err
	}
	if c.Limit < 0 {
		return fmt.Errorf("control: JoinConfig.Limit %v is negative", c.Limit)
	}
	return nil
}

// request returns the worker's description of itself for the services.
func (c *JoinConfig) request() *pb.JoinRequest {
	return &pb.JoinRequest{
		Job: uint32(c.Job), Sender: uint32(c.Worker), Ip: c.From.Addr().AsSlice(), Port: uint32(c.From.Port()), Mac: c.MAC,
		HotSet: c.HotSet, Agree: c.Agree, Attempt: c.attempt, KeepsLog: c.KeepsLog, Pages: wire.MaxPages,
		Rewinds: c.Rewinds, Run: c.run,
	}
}
