// SPDX-License-Identifier: Apache-2.0

// Package controlpb holds the messages and stubs of Libra's control protocol,
// generated from control.proto, whose comments are those of the fields here: units,
// and which of them prove who calls. Package control serves and calls it, has an
// example, and documents the errors; gRPC's rules for messages and goroutines hold.
package controlpb

//go:generate protoc --plugin=../../bin/protoc-gen-go --plugin=../../bin/protoc-gen-go-grpc --go_out=. --go_opt=paths=source_relative --go-grpc_out=. --go-grpc_opt=paths=source_relative control.proto
