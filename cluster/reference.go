// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"cmp"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/control"
	"github.com/libra-ina/libra/p4"
	"github.com/libra-ina/libra/telemetry"
	"github.com/libra-ina/libra/train/settings"
)

// A Field is the entry of a field of the cluster file in the reference.
type Field struct {
	// Path names the field; the items of a list are [].
	Path string
	// Kind describes the form of its values for readers.
	Kind string
	// Default is the value of an omitted field; empty if there is none.
	Default string
	// Range describes the allowed values beyond their kind, and their conditions.
	Range string
	// About describes the purpose of the field.
	About string
	// Example is a value, in YAML.
	Example string
	// Given marks the fields of the example that are not commented out.
	Given bool
}

// about is the hand-written part of the reference; its order is that of the example. The fields of
// training are those of package settings.
var about = []Field{
	{Path: "backend", Range: "afxdp, udp", About: "Transport of frames: AF_XDP sockets and the XDP aggregator, which need root, or UDP sockets and the aggregator in Go", Example: "udp", Given: true},
	{Path: "port", Range: "1..65535", About: "UDP port of all frames"},
	{Path: "silence", Range: "above 0", About: "How long to wait for a silent peer before pushes and pulls fail"},
	{Path: "capture", About: "Folder into which every worker and the server record their frames as pcapng",
		Example: "captures"},
	{Path: "telemetry.port", Range: "1..65535; no port of a control field",
		About:   "TCP port at which each process shows its metrics and records, at the address of its control field, or of a worker's frames (docs/telemetry.md); without it nothing listens",
		Example: "7790"},
	{Path: "telemetry.sample", Range: "0, or a power of two up to 65536; the same at all hosts",
		About:   "One frame of this number is measured; 0 measures none. The default is " + text(telemetry.DefaultSample),
		Example: text(telemetry.DefaultSample)},

	{Path: "codec.bound", Range: "1..14; not without a server; the same at all hosts",
		About:   "Cold gradients travel in codes of 0, 1, 2 or 4 bytes, and differ by less than 2^-(bound + scale) from what they were; omitted, they are floats. Those below that are lost: see docs/codec.md",
		Example: "10"},
	{Path: "codec.scale", Range: "-126..126; only with bound; the same at all hosts",
		About: "Cold gradients from 2^-scale on take four bytes and are exact", Example: "0"},

	{Path: "job.id", Range: "0..255", About: "Number of the job at the switch", Example: "1", Given: true},
	{Path: "job.ids", Range: "0..255 each; not with tls, standbys, harvest_frames or replay_mib",
		About:   "More numbers at the switch. The hot set's parts are dealt out in turn among id and these: each is a job there, with its own lock in the data plane and its own slots. With plan, they are for changes of the plan: a switch needs another number for each share that it gets while it has one",
		Example: "[2, 3]"},
	{Path: "job.plan", Range: "auto, or a file; needs switches; not with standbys, harvest_frames or replay_mib",
		About: "Divide the hot set among switches, one share at each, by a plan: one that the server makes at its start, or has as a file of 'libra plan --json'", Example: "auto"},
	{Path: "job.hot_set", Range: "required, but not by 'libra glm'", About: "File that 'libra hotset build' wrote",
		Example: "hot.libra",
		Given:   true},
	of(settings.Sync),
	of(settings.Arithmetic),
	{Path: "job.exponent", Range: "-100..60; not with lut",
		About: fmt.Sprintf("One unit of an exact or fixed sum is 2^exponent. The default is %d with exact, %d with fixed",
			aggregator.DefaultExp(aggregator.Exact), aggregator.DefaultFixedExp),
		Example: text(aggregator.DefaultExp(aggregator.Exact))},
	of(settings.Harvest),
	of(settings.Staleness),
	of(settings.Accumulate),
	{Path: "job.harvest_frames", Range: "not with sync, ids or plan",
		About: "Number of frames that also triggers a harvest, if it is reached first", Example: "5000"},

	{Path: "job.replay_mib", Range: "1..1024",
		About: "Memory, in MiB, in which a worker or agent keeps the hot frames that the aggregator has acknowledged until the server has their sums; when it is full, pushes wait. Not with plane p4"},

	{Path: "switch.address", Range: "required, IPv4", About: "Where hot frames go", Example: "127.0.0.1", Given: true},
	{Path: "switch.control", Range: "required", About: "TCP address of the switch's control service",
		Example: "127.0.0.1:7700", Given: true},
	{Path: "switch.plane", Range: "xdp with backend afxdp, model with udp, p4 with afxdp",
		About: "What aggregates: the XDP program, the Go model or a P4 switch. The default is the backend's"},
	{Path: "switch.interfaces", Range: "required with plane xdp, only then",
		About: "Interfaces that the XDP program is attached to", Example: "[eth1, eth2, eth3]"},
	{Path: "switch.xdp_mode", Range: "auto, native, generic; only with plane xdp",
		About: "How the XDP program is attached"},
	{Path: "switch.slots", Range: "1 or more", About: "Slots of all jobs together. The default is " +
		text(control.DefaultSlots), Example: text(control.DefaultSlots)},
	{Path: "switch.threaded_napi", Range: "only with backend afxdp",
		About: "Receive frames in kernel threads, which share the CPUs with processes", Example: "true"},
	{Path: "switch.stripes", Range: "1..25; 1..10 with backend udp; 1 with plane p4", About: "Largest number of stripes in a hot frame; a stripe has 22 gradients. More than 10 need jumbo frames: an MTU of 40 bytes and 136 for each, 3440 for 25"},
	{Path: "switch.lane_aligned", About: "Send frames whose pairs are in the lanes of their registers, as a P4 switch needs them. The default is true with plane p4", Example: "true"},
	{Path: "switch.silence", Range: text(control.MinSilence) + " or more; not with plane p4",
		About:   fmt.Sprintf("How long the aggregator may be out of reach, or send no heartbeat, until the job goes on without it (docs/failures.md). The default is %s, and %s without standbys", text(DefaultSilence), text(control.DefaultLease)),
		Example: text(DefaultSilence)},
	{Path: "switch.evacuate", Range: "only with standbys",
		About: "Let the job move to a standby by itself when its aggregator drops more than 1 % of its frames for 10 seconds", Example: "true"},
	{Path: "switch.p4.runtime", Range: "host:port or unix:path; switch.p4 only with plane p4",
		About: "P4Runtime address of the P4 switch", Example: "127.0.0.1:9559"},
	{Path: "switch.p4.device", About: "Its number at that address", Example: "0"},
	{Path: "switch.p4.election", Range: "1 or more",
		About: "Election ID: the controller with the highest is the switch's primary. The default is " +
			text(p4.DefaultElection), Example: text(p4.DefaultElection)},
	{Path: "switch.p4.ports", Range: "0..509, each once", About: "Ports with hosts", Example: "[1, 2, 3]"},
	{Path: "switch.p4.hosts", Range: "0..509, by MAC address",
		About: "Ports of hosts. Frames for unknown addresses go to all ports", Example: `{"02:00:00:00:00:01": 1}`},
	{Path: "switch.p4.p4info", Range: "together with config",
		About: "P4Info file of a compiled program. The default is the built-in one", Example: "program.p4info.txtpb"},
	{Path: "switch.p4.config", Range: "together with p4info", About: "Device configuration file of the same program",
		Example: "program.json"},
	{Path: "switch.p4.replace", About: "Replace a different program that the switch runs", Example: "true"},

	{Path: "standbys[].address", Range: "required, IPv4",
		About: "Aggregators at which the job goes on, in this order, when that of switch is lost; that one is a candidate, too, when it is back. The other settings of switch, whose plane must not be p4, are also theirs. Where hot frames go", Example: "127.0.0.1"},
	{Path: "standbys[].control", Range: "required", About: "TCP address of its control service",
		Example: "127.0.0.1:7701"},
	{Path: "standbys[].interfaces", Range: "required with plane xdp, only then",
		About: "Interfaces that its XDP program is attached to", Example: "[eth1, eth2, eth3]"},
	{Path: "standbys[].xdp_mode", Range: "auto, native, generic; only with plane xdp",
		About: "How its XDP program is attached. The default is auto", Example: "auto"},
	{Path: "standbys[].slots", Range: "1 or more", About: "Slots of all its jobs together. The default is " +
		text(control.DefaultSlots), Example: text(control.DefaultSlots)},
	{Path: "standbys[].threaded_napi", Range: "only with backend afxdp",
		About: "Receive frames in kernel threads, which share the CPUs with processes", Example: "true"},

	{Path: "switches[].name", Range: "1 to 63 bytes, each once",
		About: "All switches of the hosts' network, for 'libra plan' and job.plan: at most 16 that aggregate, switch among them. Other settings of switch are also theirs. Name of one in this file", Example: "core"},
	{Path: "switches[].address", Range: "required, IPv4; not with plain", About: "Where hot frames go",
		Example: "127.0.0.1"},
	{Path: "switches[].links", Range: "names of others, each once; no loops",
		About: "Switches to which cables lead; a cable may be listed at one of its ends or at both", Example: "[left, right]"},
	{Path: "switches[].slots", Range: "1 or more; not with plain",
		About: "Slots that plans may use. For the machine of switch, its slots; otherwise the default is " +
			text(control.DefaultSlots), Example: "65536"},
	{Path: "switches[].parent", Range: "the name of another; no circles; not with plain or lut",
		About: "Switch that takes the harvests in place of the server and adds them to its own; it holds all that this one holds", Example: "core"},
	{Path: "switches[].control", Range: "required with job.plan, unless plain; not for the machine of switch",
		About: "TCP address of the control service of its daemon, 'libra switch --name'", Example: "127.0.0.1:7701"},
	{Path: "switches[].interfaces", Range: "required with control and plane xdp, only then",
		About: "Interfaces that its XDP program is attached to, those of cables to other switches among them", Example: "[eth1, eth2, eth3]"},
	{Path: "switches[].xdp_mode", Range: "auto, native, generic; only with control and plane xdp",
		About: "How its XDP program is attached. The default is auto", Example: "auto"},
	{Path: "switches[].threaded_napi", Range: "only with control and backend afxdp",
		About: "Receive frames in kernel threads, which share the CPUs with processes", Example: "true"},
	{Path: "switches[].plain", About: "Whether the switch only forwards, as an ordinary one does", Example: "true"},

	{Path: "server.address", Range: "required, IPv4", About: "Where cold gradients and pulls go", Example: "127.0.0.2",
		Given: true},
	{Path: "server.interface", Range: "required with backend afxdp, only then",
		About: "Interface of the server's AF_XDP socket", Example: "eth0"},
	{Path: "server.queue", Range: "0 or more; only with backend afxdp", About: "Receive queue of that interface",
		Example: "0"},
	{Path: "server.at", Range: "required with switches, only then", About: "Switch to which the host is cabled",
		Example: "core"},
	{Path: "server.control", Range: "required", About: "TCP address of the server's control service",
		Example: "127.0.0.2:7700", Given: true},
	{Path: "server.checkpoint",
		About:   "File for the weights and the progress of training; without it a server leaves nothing but its result line",
		Example: "weights.libra", Given: true},
	{Path: "server.checkpoint_every", Range: "0 or more; only with checkpoint",
		About: "Time between two checkpoints; 0s turns periodic ones off. The default is " + text(DefaultCheckpointEvery)},
	{Path: "server.checkpoint_steps", Range: "only with checkpoint and sync",
		About: "Steps after which a checkpoint is written, too", Example: "1000"},
	{Path: "server.rejoin", Range: "above 0; not with sync and several servers",
		About: "How long a lost worker may take to rejoin"},
	{Path: "server.max_rows", Range: "1..2147483647",
		About: "Number of rows from which gradients of new rows are refused; with optimizer none, rows of a step"},

	{Path: "workers[].id", Range: "1..65534, each once", About: "Number of the worker, which 'libra worker --id' takes",
		Example: "1", Given: true},
	{Path: "workers[].address", Range: "required, IPv4", About: "Address of the worker's frames", Example: "127.0.0.3",
		Given: true},
	{Path: "workers[].interface", Range: "required with backend afxdp, only then",
		About: "Interface of its AF_XDP socket", Example: "eth0"},
	{Path: "workers[].queue", Range: "0 or more; only with backend afxdp", About: "Receive queue of that interface",
		Example: "0"},
	{Path: "workers[].at", Range: "required with switches, only then", About: "Switch to which the host is cabled",
		Example: "core"},

	of(settings.Model),
	of(settings.Task),
	of(settings.Factors),
	{Path: "model.dim", Range: "1..65; not with other kind and factors",
		About: "Floats of a row, in place of kind and factors, for programs that train through agents", Example: "16"},
	of(settings.Optimizer),
	of(settings.LearningRate),
	of(settings.InitialAccumulator),
	of(settings.InitScale),
	of(settings.L2),
	of(settings.Batch),
	of(settings.Epochs),
	of(settings.Seed),

	{Path: "data.train", Range: "this or data.synthetic; neither where all hosts have agents",
		About: "Training rows in libfm, libsvm or libffm format, plain or gzip", Example: "train.libfm.gz", Given: true},
	{Path: "data.test", Range: "not with data.synthetic",
		About:   "Held-out rows in the same formats, on the server's host, which evaluates the weights after each epoch",
		Example: "test.libfm.gz"},
	of(settings.Window),
	{Path: "data.synthetic.rows", Range: "1 or more", About: "Rows of a synthetic log to train on"},
	{Path: "data.synthetic.first", Range: "0 or more", About: "Number of the first of them", Example: "0"},
	{Path: "data.synthetic.seed", About: "Seed of the log", Example: "1"},
	{Path: "data.synthetic.hot_share", Range: "between 0 and 1",
		About: "Share of the updates that go to the hot features"},
	{Path: "data.synthetic.hot", Range: "1 or more", About: "Number of the hot features"},
	{Path: "data.synthetic.test", Range: "0 or more", About: "Number of held-out rows, which follow the training rows",
		Example: "50000"},

	{Path: "faults.loss", Range: "from 0, below 1", About: "Probability that a frame of a worker is lost, for tests",
		Example: "0.01"},
	{Path: "faults.duplicate", Range: "from 0, below 1", About: "Probability that it arrives twice", Example: "0.01"},
	{Path: "faults.reorder", Range: "from 0, below 1", About: "Probability that later frames overtake it",
		Example: "0.01"},
	{Path: "faults.seed", Range: "only with faults", About: "Seed of the faults", Example: "1"},

	{Path: "tls.ca", Range: "all three or none",
		About: "Authority of the certificates of control connections, a PEM file", Example: "ca.pem"},
	{Path: "tls.cert", Range: "all three or none", About: "Certificate of this host", Example: "cert.pem"},
	{Path: "tls.key", Range: "all three or none", About: "Its key", Example: "key.pem"},
}

// of is the entry of a field whose home is package settings.
func of[T comparable](f settings.Field[T]) Field {
	return Field{Path: f.Path, Range: f.Possible(), About: f.About, Example: f.Example}
}

// Reference lists the fields of the cluster file, in its order.
func Reference() []Field {
	fallbacks := map[string]string{}
	// With all parts that have defaults.
	for _, f := range (&Config{Backend: BackendAFXDP, Data: Data{Synthetic: &Synthetic{}}}).defaults() {
		if f.field != "switch.slots" && f.field != "switch.plane" && f.field != "switch.silence" { // their About has it
			fallbacks[f.field] = text(f.value)
		}
	}
	list := withServers(about)
	for i := range list {
		f := &list[i]
		f.Kind = describe(typeOf(reflect.TypeFor[Config](), f.Path))
		f.Default = fallbacks[strings.Replace(f.Path, "servers[].", "server.", 1)]
		switch f.Path {
		case "server.checkpoint_every", "servers[].checkpoint_every":
			f.Example = text(DefaultCheckpointEvery)
		case "switch.plane":
			f.Example = PlaneModel
		}
		f.Example = cmp.Or(f.Example, f.Default)
	}
	return list
}

// withServers puts the fields of several servers after those of one.
func withServers(fields []Field) (list []Field) {
	var servers []Field
	for i, f := range fields {
		list = append(list, f)
		field, ofServer := strings.CutPrefix(f.Path, "server.")
		if !ofServer {
			continue
		}
		f.Path, f.Given = "servers[]."+field, false
		if field == "checkpoint_steps" {
			f.Range = "1 or more with several servers; " + f.Range
			f.About += fmt.Sprintf(", the same at all servers. The default with sync is %d", DefaultCheckpointSteps)
		}
		if servers = append(servers, f); !strings.HasPrefix(fields[i+1].Path, "server.") {
			servers[0].About = "Several servers instead of server, each with a part of the rows: 1 to 32 items. " +
				servers[0].About
			list = append(list, servers...)
		}
	}
	return list
}

// text returns a value as it is written in a file.
func text(value any) string {
	if d, ok := value.(time.Duration); ok {
		s := d.String()
		if strings.HasSuffix(s, "m0s") {
			s = strings.TrimSuffix(s, "0s")
		}
		return s
	}
	return fmt.Sprint(value)
}

// typeOf returns the type of the values of a field.
func typeOf(t reflect.Type, path string) reflect.Type {
	for name := range strings.SplitSeq(path, ".") {
		name, list := strings.CutSuffix(name, "[]")
		if t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
		_, types := fieldsOf(t)
		if t = types[name]; list {
			t = t.Elem()
		}
	}
	return t
}

// Example returns a cluster file for one machine with every field: unneeded fields are commented
// out.
func Example() []byte {
	var b bytes.Buffer
	b.WriteString("# A cluster on one machine, without privileges. Fields that are commented out show\n" +
		"# their defaults, or an example. 'libra config reference' explains each.\n")
	var open []string
	for _, f := range Reference() {
		path := strings.Split(f.Path, ".")
		last := len(path) - 1
		for depth := range path[:last] {
			if depth < len(open) && open[depth] == path[depth] {
				continue
			}
			open = append(open[:depth:depth], path[depth])
			if depth == 0 {
				b.WriteByte('\n')
			}
			comment, name := "", path[depth]
			switch strings.Join(path[:depth+1], ".") {
			case "switch.p4", "standbys[]", "switches[]", "servers[]", "data.synthetic", "faults", "tls", "telemetry",
				"codec":
				comment = "# "
			}
			fmt.Fprintf(&b, "%s%s%s:\n", strings.Repeat("  ", depth), comment, strings.TrimSuffix(name, "[]"))
		}
		open = open[:last]
		indent, about := strings.Repeat("  ", last), f.About
		if f.Range != "" {
			about += " (" + f.Range + ")"
		}
		switch {
		case f.Path == "workers[].id":
			indent = "  - "
		case strings.Contains(f.Path, "[]"):
			indent = "    "
		}
		if !f.Given {
			indent += "# "
		}
		if f.Path == "servers[].address" || f.Path == "switches[].name" || f.Path == "standbys[].address" {
			indent = "  # - "
		}
		fmt.Fprintf(&b, "%-44s # %s\n", indent+path[last]+": "+f.Example, about)
	}
	return b.Bytes()
}

// Markdown returns docs/config.md.
func Markdown() []byte {
	var b bytes.Buffer
	b.WriteString(`# The cluster file

Every field of the YAML file that all processes of a cluster read. ` + "`libra config reference`" + `
prints this page, ` + "`libra config example`" + ` a file with all of it, and ` + "`libra config check FILE`" + `
looks for mistakes. Times have units, as in 20ms, 5s or 1m. A field that is omitted, or is
null, has its default; a zero that is written is a zero, and refused where that is not possible.

| field | value | default | possible | |
|---|---|---|---|---|
`)
	for _, f := range Reference() {
		fallback := ""
		if f.Default != "" {
			fallback = "`" + f.Default + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", f.Path, f.Kind, fallback, f.Range, f.About)
	}
	b.WriteString("\n## Example\n\n```yaml\n")
	b.Write(Example())
	b.WriteString("```\n")
	return b.Bytes()
}
