package push

// newSample makes a sample from two readings.
//
// Nothing is counted twice: the aggregator's program runs in the context of
// whichever process sent a frame, or of a ksoftirqd, so its time is
// taken from the kernel's. The baselines have no aggregator; what this
// process needs beside them is the measurement's.
func newSample(peer string, before, after reading, batch int) Sample {
	var rate, user, kernel, server float64 // pairs, and CPU ns, per second
	for i, b := range before.marks {
		a := after.marks[i]
		seconds := float64(a.At-b.At) / 1e9
		kernel += float64(a.Kernel-b.Kernel) / seconds
		if i == len(before.marks)-1 {
			server = float64(a.User-b.User) / seconds
			break
		}
		rate += float64(a.Pushes-b.Pushes) * float64(batch) / seconds
		user += float64(a.User-b.User) / seconds
	}
	seconds := float64(after.own.At-before.own.At) / 1e9
	kernel += float64(after.softirq-before.softirq) / seconds
	program := float64(after.aggregator-before.aggregator) / seconds
	daemon := float64(after.own.User-before.own.User+after.own.Kernel-before.own.Kernel) / seconds
	if peer != PeerLibra {
		program, daemon = 0, 0
	}
	return Sample{
		PairsPerSecond: rate,
		NsWorker:       quotient(user, rate),
		NsKernel:       quotient(max(0, kernel-program), rate),
		NsAggregator:   quotient(program+daemon, rate),
		NsServer:       quotient(server, rate),
	}
}
