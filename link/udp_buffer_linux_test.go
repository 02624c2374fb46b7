package link

import (
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/libra-ina/libra/internal/sys"
)

// With the capability, a socket has the buffer that it asks for, beyond the system's
// limit; the kernel counts twice that.
func TestUDPBufferBeyondTheLimit(t *testing.T) {
	text, err := os.ReadFile("/proc/sys/net/core/rmem_max")
	if err != nil {
		t.Skip(err)
	}
	limit, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	missing, err := sys.MissingCapabilities(sys.CapNetAdmin)
	if err != nil {
		t.Fatal(err)
	}
	if len(missing) > 0 {
		t.Skipf("%v is missing", missing)
	}
	want := limit + 1<<16
	s, got, err := openUDPSocket(netip.MustParseAddrPort("127.0.0.1:0"), 0, want)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	if got != 2*want {
		t.Errorf("a buffer of %d bytes, want twice %d", got, want)
	}
}
