// Package packer decides which parameters are hot, where they live in the
// aggregator's registers, and in which frame each gradient travels.
//
//   - [Exact] and [SpaceSaving] count how often parameters are updated, over a
//     [Sampler]'s choice of training rows; [Principle] turns the counts into a
//     [HotSet] (libra.txt §3.3, Principle 1).
//   - [Heat] and [Random] place ranks in registers; [Algorithm1] and
//     [Orchestrator] are the paper's packaging of gradients for such a
//     placement (libra.txt §3.4).
//   - [Packer] is what Libra itself sends with: it splits a batch into hot and
//     cold gradients and writes both straight into frame buffers that a
//     [Frames] lends.
//
// The package knows nothing of sockets and none of its types may be used by
// two goroutines at once, except HotSet, which is immutable.
package packer
