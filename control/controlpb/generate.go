// Package controlpb holds the messages and stubs of Libra's control protocol,
// generated from control.proto.
package controlpb

//go:generate protoc --plugin=../../bin/protoc-gen-go --plugin=../../bin/protoc-gen-go-grpc --go_out=. --go_opt=paths=source_relative --go-grpc_out=. --go-grpc_opt=paths=source_relative control.proto
