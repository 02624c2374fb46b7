// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"regexp"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/libra-ina/libra/internal/report"
	"github.com/libra-ina/libra/wire"
)

// version is the release that this source belongs to; CHANGELOG.md has the
// same number.
const version = "0.1.0"

// release returns the version that the program was built from: that of the tag, if Go
// noted one (in a clone at a tag, and with 'go install ...@v1.2.3'), and version otherwise.
func release() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		return releaseOf(info.Main.Version)
	}
	return version
}

// tagged is the form of versions that are tags, and no other commits.
var tagged = regexp.MustCompile(`^v(\d+\.\d+\.\d+(-rc\.?\d+)?)$`)

func releaseOf(module string) string {
	if tag := tagged.FindStringSubmatch(module); tag != nil {
		return tag[1]
	}
	return version
}

// VersionInfo is the JSON object of 'libra version'.
type VersionInfo struct {
	Version  string `json:"version"`
	Protocol int    `json:"protocol"`           // of frames
	Go       string `json:"go"`                 // that built the program
	Platform string `json:"platform"`           // operating system and architecture
	Revision string `json:"revision,omitempty"` // the commit, if it is known
}

func newVersion() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			v := VersionInfo{release(), wire.Version, runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH, revision()}
			out := cmd.OutOrStdout()
			if asJSON {
				return report.WriteJSON(out, v)
			}
			_, err := fmt.Fprintf(out, "libra %s (wire protocol %d, %s, %s)\n", fullVersion(), v.Protocol, v.Go, v.Platform)
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	return cmd
}

// fullVersion is the version with the commit, if it is known.
func fullVersion() string {
	if r := revision(); r != "" {
		return release() + ", commit " + r
	}
	return release()
}

// revision returns the commit that the binary was built from, if it is known.
func revision() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				return s.Value
			}
		}
	}
	return ""
}
