// Package ps is the embedded parameter server: the store that holds a job's
// weights and applies its optimiser. It knows nothing of sockets; transport
// feeds it frames.
//
// A parameter lives in a row of Dim floats that is named by a uint64 key. Within
// a step the store only sums: gradients are converted to fixed point (package
// internal/fixedpoint) and added to one int64 a parameter, and so are the sums
// that are harvested from an aggregator. [Store.Commit] ends the step: it
// applies the optimiser once to every row that was touched, with its sum
// rounded once to float32. Integer addition is associative and rows do not
// depend on each other, so the weights after a step depend neither on the order
// of arrival nor on which rows an aggregator summed.
package ps
