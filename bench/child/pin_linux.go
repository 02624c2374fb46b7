package child

import (
	"github.com/libra-ina/libra/internal/sys"
)

var pin = sys.PinProcess
