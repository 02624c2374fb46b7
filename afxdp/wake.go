//go:build linux

package afxdp

// Wake makes a current or the next Poll return with EventWake. It may be called
// from any goroutine, also after Close.
func (s *Socket) Wake() { s.wake.Wake() }
