// SPDX-License-Identifier: Apache-2.0

package export

import (
	"slices"
	"strings"

	"github.com/libra-ina/libra/telemetry"
)

// Kind is the type of a metric.
type Kind string

// Kinds.
const (
	Counter   Kind = "counter"
	Gauge     Kind = "gauge"
	Summary   Kind = "summary" // count and sum of times
	Histogram Kind = "histogram"
)

// fold says what becomes of the values of those that have no series of their own.
type fold uint8

const (
	sum  fold = iota // their sum is shown
	most             // the largest is shown
	none             // they are not shown
)

// Family is a metric with its labels. CounterName in its name stands for the name of a counter in
// 'libra stats --json'.
type Family struct {
	Name   string
	Kind   Kind
	Labels []string
	Help   string

	fold fold
}

// CounterName stands for the names of counters.
const CounterName = "COUNTER"

// families are in the order of the table in docs/telemetry.md.
var families []*Family

func family(kind Kind, name, labels, help string, folds ...fold) *Family {
	f := &Family{Name: name, Kind: kind, Labels: strings.Fields(labels), Help: help}
	if len(folds) > 0 {
		f.fold = folds[0]
	}
	families = append(families, f)
	return f
}

// Families returns all metrics that processes show.
func Families() []Family {
	all := make([]Family, len(families))
	for i, f := range families {
		all[i] = *f
		all[i].Labels = slices.Clone(f.Labels)
	}
	return all
}

// The metrics of all processes.
var (
	latency = family(Histogram, "libra_latency_seconds", "job worker op part peer",
		"Times of drawn frames and pushes, by part")
	loopTime = family(Counter, "libra_loop_seconds_total", "job worker part",
		"Time of an endpoint's loop, by part: waiting for work, calls, sums of harvests, or frames")
	sampleSize  = family(Gauge, "libra_telemetry_sample_frames", "", "One frame of this number is measured, 0 for none")
	countersAge = family(Gauge, "libra_counters_age_seconds", "",
		"Age of all other counters: more than some seconds if the process does not answer itself")
	stampsUnused = family(Counter, "libra_telemetry_unused_stamps_total", "",
		"Times of arrival that cannot be true, because a clock was set or is another one")
	seriesLeft = family(Gauge, "libra_export_series_left_out", "",
		"Series that the last scrape left out because there were too many")
	scrapesRefused = family(Counter, "libra_export_refused_requests_total", "",
		"Requests refused because too many were open, or the caller may not make them")
	scrapesBroken = family(Counter, "libra_export_broken_responses_total", "",
		"Responses that were not sent whole, because the reader was too slow or had gone")
	recordsTorn = family(Counter, "libra_export_torn_records_total", "",
		"Records that were replaced while they were read, and left out")
)

// The metrics of switches.
var (
	switchJobs        = family(Gauge, "libra_switch_jobs", "", "Jobs of the switch")
	switchSlots       = family(Gauge, "libra_switch_slots", "", "Slots of all jobs together, at most")
	switchSlotsUsed   = family(Gauge, "libra_switch_slots_used", "", "Slots that jobs use")
	switchSenders     = family(Gauge, "libra_switch_senders", "", "Senders of all jobs together, at most")
	switchSendersUsed = family(Gauge, "libra_switch_senders_used", "", "Senders that jobs have reserved")
	switchMemory      = family(Gauge, "libra_switch_memory_bytes", "", "Memory of the banks of all jobs")
	switchRefused     = family(Counter, "libra_switch_refused_frames_total", "",
		"Frames refused, for all reasons, that belong to no job")
	switchCounters = family(Counter, "libra_switch_COUNTER_total", "",
		"A counter of the switch: see Counters in docs/operations.md")

	jobHeld  = family(Gauge, "libra_job_held", "job", "Whether the owner of the job is connected")
	jobLease = family(Gauge, "libra_job_lease_seconds", "job",
		"Time until the job is removed without its owner", none)
	jobEpoch    = family(Gauge, "libra_job_epoch", "job", "Epoch of the job", none)
	jobExponent = family(Gauge, "libra_job_exponent", "job", "One unit of a sum is 2 to this power", none)
	jobWorkers  = family(Gauge, "libra_job_workers", "job", "Workers that the job was created for")
	jobSenders  = family(Gauge, "libra_job_senders", "job", "Senders that are admitted")
	jobReserved = family(Gauge, "libra_job_senders_reserved", "job", "Senders that the job has reserved")
	jobSlots    = family(Gauge, "libra_job_slots", "job", "Slots of the job")
	jobMemory   = family(Gauge, "libra_job_memory_bytes", "job", "Memory of the job's banks")
	jobHarvests = family(Counter, "libra_job_harvests_total", "job", "Harvests begun")
	jobPeriod   = family(Gauge, "libra_job_harvest_period_seconds", "job",
		"Time between two harvests as asked for, 0 for none", none)
	jobFrames = family(Gauge, "libra_job_harvest_frames", "job",
		"Frames between two harvests as asked for, 0 for none", none)
	jobInterval = family(Summary, "libra_job_harvest_interval_seconds", "job",
		"Times between the starts of two harvests")
	jobIntervalOf = family(Gauge, "libra_job_harvest_interval_last_seconds", "job", "The last of these times", most)
	jobIntervalMx = family(Gauge, "libra_job_harvest_interval_max_seconds", "job", "The longest of these times", most)
	jobHarvestFor = family(Summary, "libra_job_harvest_held_seconds", "job",
		"Times from the start of a harvest until the server had applied it")
	jobHeldLast = family(Gauge, "libra_job_harvest_held_last_seconds", "job", "The last of these times", most)
	jobHeldMax  = family(Gauge, "libra_job_harvest_held_max_seconds", "job", "The longest of these times", most)
	jobAge      = family(Summary, "libra_job_gradient_age_seconds", "job",
		"Ages of the oldest gradient of a harvest, at most, when the server had applied it")
	jobAgeLast  = family(Gauge, "libra_job_gradient_age_last_seconds", "job", "The last of these ages", most)
	jobAgeMax   = family(Gauge, "libra_job_gradient_age_max_seconds", "job", "The longest of these ages", most)
	jobChildren = family(Gauge, "libra_job_children", "job", "Jobs at other switches whose harvests the job takes")
	childTaken  = family(Counter, "libra_job_child_harvests_total", "job peer", "Harvests taken from a switch")
	childAgain  = family(Counter, "libra_job_child_repeated_harvests_total", "job peer",
		"Harvests of these that were sent again on a new connection")
	childBroken = family(Counter, "libra_job_child_broken_streams_total", "job peer",
		"Connections for harvests from a switch that broke")
	childAnswer = family(Summary, "libra_job_child_answer_seconds", "job peer",
		"Times from asking a switch for a harvest until it was there")
	childAnswerLast = family(Gauge, "libra_job_child_answer_last_seconds", "job peer", "The last of these times", most)
	childAnswerMax  = family(Gauge, "libra_job_child_answer_max_seconds", "job peer", "The longest of these times", most)
	childAwaited    = family(Gauge, "libra_job_child_awaited_seconds", "job peer",
		"Time since a switch was asked for a harvest that it has not sent, 0 for none", most)
	jobRefused  = family(Counter, "libra_job_refused_frames_total", "job", "Frames of the job refused, for all reasons")
	jobCounters = family(Counter, "libra_job_COUNTER_total", "job",
		"A counter of the job at the switch: see Counters in docs/operations.md")
)

// The metrics of parameter servers.
var (
	serverRows     = family(Gauge, "libra_server_rows", "job", "Rows that the server holds")
	serverSteps    = family(Counter, "libra_server_steps_total", "job", "Steps that have ended")
	serverHarvests = family(Counter, "libra_server_harvests_total", "job", "Harvests with sums")
	serverCounters = family(Counter, "libra_server_COUNTER_total", "job",
		"A counter of the server: see Counters in docs/operations.md")
	stepsAfter = family(Summary, "libra_server_step_arrival_seconds", "job worker",
		"Times from the first arrival at the end of a step to the worker's")
	stepsLast = family(Counter, "libra_server_last_arrivals_total", "job worker",
		"Steps at whose end the worker was the last to arrive")
	stepsAwaited = family(Gauge, "libra_server_awaited_seconds", "job worker",
		"Time for which others have waited for the worker at the end of the open step", most)
)

// The metrics of workers, and of agents for each job in which they are a worker.
var (
	sentFrames = family(Counter, "libra_worker_sent_frames_total", "job worker op",
		"Frames sent, copies not counted")
	ackedFrames   = family(Counter, "libra_worker_acknowledged_frames_total", "job worker op", "Frames acknowledged")
	coveredFrames = family(Counter, "libra_worker_covered_frames_total", "job worker op",
		"Frames acknowledged by another frame's answer")
	refusedFrames  = family(Counter, "libra_worker_refused_frames_total", "job worker op", "Frames refused")
	repeatedFrames = family(Counter, "libra_worker_repeated_frames_total", "job worker op",
		"Copies sent because an answer was late")
	probes   = family(Counter, "libra_worker_probes_total", "job worker op", "Copies sent after a timeout")
	backoffs = family(Counter, "libra_worker_backoffs_total", "job worker op", "Doublings of the timeout")
	spurious = family(Counter, "libra_worker_spurious_frames_total", "job worker op",
		"Frames repeated although no copy was lost")
	roundTrip       = family(Gauge, "libra_worker_round_trip_seconds", "job worker op", "Smoothed round-trip time", most)
	retransmitAfter = family(Gauge, "libra_worker_retransmission_timeout_seconds", "job worker op",
		"Time after which a frame is sent again", most)
	inFlight = family(Gauge, "libra_worker_in_flight_frames_max", "job worker op",
		"Frames that may be in flight", most)

	pairsHot = family(Counter, "libra_worker_hot_pairs_total", "job worker",
		"Gradients sent to the aggregator, sums included")
	pairsAdded = family(Counter, "libra_worker_added_pairs_total", "job worker",
		"Gradients that were added up before they were sent")
	pairsPushed = family(Counter, "libra_worker_pushed_hot_pairs_total", "job worker",
		"Gradients of pushes that are of hot rows")
	pairsCold = family(Counter, "libra_worker_cold_pairs_total", "job worker",
		"Gradients of pushes that are of no hot row")
	hotSetShare = family(Gauge, "libra_worker_hot_set_share", "job worker",
		"Share of the updates that were of hot rows in the log from which the hot set was made, 0 if unknown", most)
	rowsCold = family(Counter, "libra_worker_cold_rows_total", "job worker", "Rows of gradients sent to servers")
	rowsAt   = family(Counter, "libra_worker_numbered_rows_total", "job worker", "Of these, rows sent by number")
	renamed  = family(Counter, "libra_worker_renamed_rows_total", "job worker",
		"Rows sent again by key, because their numbers were refused")
	keysPulled = family(Counter, "libra_worker_pulled_keys_total", "job worker", "Rows of weights pulled")
	vanished   = family(Counter, "libra_worker_vanished_gradients_total", "job worker",
		"Gradients that the job's unit rounds to 0")
	pushesMade   = family(Counter, "libra_worker_pushes_total", "job worker", "Pushes that have ended")
	pullsMade    = family(Counter, "libra_worker_pulls_total", "job worker", "Pulls that have ended")
	betweenCalls = family(Counter, "libra_worker_own_seconds_total", "job worker",
		"Time in which no push, no pull and no end of a step was under way")
	peerSilence = family(Gauge, "libra_worker_peer_silence_seconds", "job worker peer",
		"Time since the peer has answered, while frames to it are outstanding", most)
	logFrames = family(Gauge, "libra_worker_log_frames", "job worker",
		"Hot frames in the log of what the server may lack")
	logBytes = family(Gauge, "libra_worker_log_bytes", "job worker", "Memory of these frames")
	logWaits = family(Counter, "libra_worker_log_waits_total", "job worker", "Pushes that waited for room in the log")
	settled  = family(Counter, "libra_worker_settled_frames_total", "job worker",
		"Hot frames sent to the server because the aggregator was lost")
	results   = family(Counter, "libra_worker_results_total", "job worker", "Results of rounds")
	malformed = family(Counter, "libra_worker_malformed_frames_total", "job worker", "Answers that are not valid")
	stray     = family(Counter, "libra_worker_stray_frames_total", "job worker",
		"Answers that belong to no frame of the worker")
	unsent = family(Counter, "libra_worker_unsent_frames_total", "job worker",
		"Frames that the kernel refused to send")
	foreign = family(Counter, "libra_worker_foreign_packets_total", "job worker",
		"Received packets that are not for the worker")
	truncated = family(Counter, "libra_worker_truncated_packets_total", "job worker",
		"Received packets that are not whole")
	badChecksum = family(Counter, "libra_worker_bad_checksum_packets_total", "job worker",
		"Received packets with a wrong checksum")
	overrun = family(Counter, "libra_worker_overrun_packets_total", "job worker",
		"Received packets for which no buffer was free")
)

// The metrics of host agents.
var (
	agentJobs    = family(Gauge, "libra_agent_jobs", "", "Jobs that the agent serves")
	agentRefused = family(Counter, "libra_agent_refused_clients_total", "",
		"Clients that were not admitted; libra stats has the reasons")
	agentMemory = family(Gauge, "libra_agent_memory_bytes", "job", "Memory of the sessions of a job")
	agentEnded  = family(Counter, "libra_agent_ended_sessions_total", "job",
		"Sessions that have ended; libra stats has the reasons")
	agentClients  = family(Gauge, "libra_agent_clients", "job", "Clients that are connected")
	agentLearning = family(Gauge, "libra_agent_learning", "job", "Programs that count the keys of pushes")

	clientMemory   = family(Gauge, "libra_agent_client_memory_bytes", "job peer", "Memory of a client's session")
	clientInFlight = family(Gauge, "libra_agent_client_in_flight_bytes", "job peer", "Memory of its pushes in flight")
	clientPrepared = family(Gauge, "libra_agent_client_prepared_bytes", "job peer", "Memory of its prepared batches")
	clientPushes   = family(Counter, "libra_agent_client_pushes_total", "job peer", "Its pushes")
	clientAcked    = family(Counter, "libra_agent_client_acknowledged_pushes_total", "job peer",
		"Its pushes that are acknowledged")
	clientFailed = family(Counter, "libra_agent_client_failed_pushes_total", "job peer",
		"Its pushes that failed; libra stats has the reasons")
	clientKeys = family(Counter, "libra_agent_client_pushed_keys_total", "job peer",
		"Rows of gradients in its pushes")
	clientPulls  = family(Counter, "libra_agent_client_pulls_total", "job peer", "Its pulls")
	clientPulled = family(Counter, "libra_agent_client_pulled_keys_total", "job peer", "Rows of weights in its pulls")
)

// Limits of what has series of its own; the rest is added up as "other". Workers and servers have
// such a limit in their recorders, telemetry.MaxPeers.
const (
	maxSwitchJobs = 32
	maxAgentJobs  = 16
	maxClients    = 32
	// maxSeries is the limit of a process. A histogram counts as three: those of the text format.
	maxSeries = 2000
)

var other = telemetry.Others.String()
