// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// A worker without a parameter server waits for its job's owner up to its limit, and for nothing
// else; one with a server does not wait.
func TestWaitsForTheOwner(t *testing.T) {
	for name, c := range map[string]struct {
		noServer bool
		code     codes.Code
		comes    time.Duration // when the job is there; 0 means never
		want     codes.Code
		took     time.Duration
	}{
		"it comes":       {true, codes.NotFound, 2 * time.Second, codes.OK, 2 * time.Second},
		"it never comes": {true, codes.NotFound, 0, codes.NotFound, 5 * time.Second},
		"another error":  {true, codes.PermissionDenied, 0, codes.PermissionDenied, 0},
		"with a server":  {false, codes.NotFound, 0, codes.NotFound, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			begin := time.Now()
			cfg := &JoinConfig{Job: 5, Limit: 5 * time.Second, NoServer: c.noServer, Log: quiet}
			_, err := whileMissing(t.Context(), cfg, func(context.Context) (int, error) {
				if since := time.Since(begin); since > time.Minute || c.comes > 0 && since >= c.comes {
					return 1, nil
				}
				return 0, status.Error(c.code, "no")
			})
			if took := time.Since(begin); status.Code(err) != c.want || took < c.took || took > c.took+longestDelay {
				t.Errorf("%s: %v after %v", name, err, took)
			}
		})
	}
}
