package aggregator

// paperHot is the number of hot parameters of the paper's default configuration
// (libra.txt §5.2), which its figures are normalised by.
const paperHot = 30_000

// paperGain is what twice the hot parameters, 60,000, bring the paper's two
// production tasks: "the improvement is 7% for OA and 1.7% for SE" (libra.txt
// §5.2, on Figure 13). The text has no other number from Figures 13 and 14 for
// Libra, and no throughput that is not normalised.
var paperGain = []struct {
	Task string
	Gain float64
}{{"OA", 1.07}, {"SE", 1.017}}

// paperSwitchML is SwitchML with twice its memory, by Libra's default
// configuration (libra.txt §5.2, on Figure 13).
const paperSwitchML = 0.456

// paperDelay is what the negotiation of a scale adds to an iteration, by number
// of workers, in milliseconds: "over 100ms when only 8 workers are used; the
// extra delay increases to 130ms when 32 workers are used" (libra.txt §5.5, on
// Figure 17).
var paperDelay = []struct {
	Workers int
	Delay   float64
}{{8, 100}, {32, 130}}
