package hotset

// Report is the outcome of a study. It marshals to one JSON object. Shares and
// precisions are between 0 and 1.
type Report struct {
	Logs      []Log       `json:"logs"`
	Precision []Precision `json:"precision"`
	Packets   []Packets   `json:"packets"`
	Lanes     []Lanes     `json:"lanes"`
	// Samples, MinGain and BatchRows are those of the Config.
	Samples   int     `json:"samples"`
	MinGain   float64 `json:"min_gain"`
	BatchRows int     `json:"batch_rows"`
}

// Log describes a training log.
type Log struct {
	Name       string `json:"name"`
	Rows       int    `json:"rows"`
	Updates    uint64 `json:"updates"`
	Parameters int    `json:"parameters"`
	// Top30K is the share of updates that the 30,000 hottest parameters take.
	Top30K float64 `json:"top_30k"`
}

// Precision is |Hg ∩ Hs| / |Hg| (libra.txt §5.3) on one log, for one step size
// of the trade-off rule: Hg is found in the whole log, Hs in a sample.
type Precision struct {
	Log  string `json:"log"`
	Step int    `json:"step"`
	// Hot is |Hg|. It is 0 if no step gains enough; Rates is empty then.
	Hot int `json:"hot"`
	// Share is the share of updates that Hg takes.
	Share float64 `json:"share"`
	// Least is how often the last parameter of Hg is updated in the whole
	// log. A sample at rate r shows it about r × Least times; far below 1, it
	// cannot be found by any method.
	Least uint64          `json:"least"`
	Rates []RatePrecision `json:"rates"`
}

// RatePrecision is the precision at one sampling rate, over several samples.
type RatePrecision struct {
	Rate   float64 `json:"rate"`
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
	// HotInSample is the median of |Hs|.
	HotInSample float64 `json:"hot_in_sample"`
}

// Method is a way to place hot parameters and to pack their gradients.
type Method string

// The methods of the packet study.
const (
	RandomInOrder  Method = "random, in order"
	HeatInOrder    Method = "heat-based, in order"
	HeatAlgorithm1 Method = "heat-based, Algorithm 1"
	LaneAligned    Method = "lane-aligned"
	Dense          Method = "dense"
)

// Packets says how one method packs the hot gradients of one log's
// mini-batches, for 22 registers and packets of 22 pairs.
type Packets struct {
	Log string `json:"log"`
	// Combined: each key once a batch, in ascending order, as a worker pushes
	// it. Otherwise every update of a row is a pair, in the order of the log.
	Combined bool   `json:"combined"`
	Method   Method `json:"method"`
	Hot      int    `json:"hot"`     // parameters in the hot set
	Batches  int    `json:"batches"` // mini-batches that were packed
	Pairs    int    `json:"pairs"`   // hot pairs in them
	Packets  int    `json:"packets"`
	// Recirculations is the mean over the packets, Worst the maximum.
	Recirculations float64 `json:"recirculations"`
	Worst          int     `json:"worst"`
	// None is the share of packets that take one pass only.
	None float64 `json:"none"`
}

// Unfilled returns the share of places in the packets that carry no pair.
func (p Packets) Unfilled() float64 {
	if p.Packets == 0 {
		return 0
	}
	return 1 - float64(p.Pairs)/float64(p.Packets*capacity)
}

// Lanes is the share of unfilled lanes in the hot frames of one log's batches
// of Size pairs, hot and cold.
type Lanes struct {
	Log         string  `json:"log"`
	Combined    bool    `json:"combined"` // as in [Packets]
	Size        int     `json:"size"`
	Batches     int     `json:"batches"`      // 0 if the log has no batch of that size
	HotPairs    float64 `json:"hot_pairs"`    // mean over the batches
	LaneAligned float64 `json:"lane_aligned"` // share of unfilled lanes
	Dense       float64 `json:"dense"`        // share of unfilled lanes
}
