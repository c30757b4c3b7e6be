// A Pulumi provider for the tests, with one kind of resource that is slow or fails on demand.
//
// hawser:index:Thing, all properties optional:
//
//	value  a change of it updates the resource
//	key    a change of it replaces the resource
//	gate   a path: the resource is created when there is a file
//	fail   "create", "update" or "delete": that operation fails;
//	       "crash": Pulumi is killed while it creates the resource
package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"

	rpc "github.com/pulumi/pulumi/sdk/v3/proto/go"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/structpb"
)

const schema = `{
  "name": "hawser", "version": "0.0.1",
  "resources": {"hawser:index:Thing": {
    "inputProperties": {
      "value": {"$ref": "pulumi.json#/Any"}, "key": {"type": "string"},
      "gate": {"type": "string"}, "fail": {"type": "string"}
    },
    "properties": {
      "value": {"$ref": "pulumi.json#/Any"}, "key": {"type": "string"},
      "gate": {"type": "string"}, "fail": {"type": "string"}
    }
  }}
}`

type provider struct {
	rpc.UnimplementedResourceProviderServer
	cancelled chan struct{}
}

func text(properties *structpb.Struct, name string) string {
	return properties.GetFields()[name].GetStringValue()
}

func failure(operation, urn string) error {
	return status.Errorf(codes.FailedPrecondition, "%s of %s failed as its program asks", operation, urn)
}

func (p *provider) GetSchema(context.Context, *rpc.GetSchemaRequest) (*rpc.GetSchemaResponse, error) {
	return &rpc.GetSchemaResponse{Schema: schema}, nil
}

func (p *provider) GetPluginInfo(context.Context, *emptypb.Empty) (*rpc.PluginInfo, error) {
	return &rpc.PluginInfo{Version: "0.0.1"}, nil
}

func (p *provider) CheckConfig(_ context.Context, r *rpc.CheckRequest) (*rpc.CheckResponse, error) {
	return &rpc.CheckResponse{Inputs: r.News}, nil
}

func (p *provider) DiffConfig(_ context.Context, r *rpc.DiffRequest) (*rpc.DiffResponse, error) {
	return &rpc.DiffResponse{}, nil
}

func (p *provider) Configure(context.Context, *rpc.ConfigureRequest) (*rpc.ConfigureResponse, error) {
	return &rpc.ConfigureResponse{SupportsPreview: true}, nil
}

func (p *provider) Check(_ context.Context, r *rpc.CheckRequest) (*rpc.CheckResponse, error) {
	return &rpc.CheckResponse{Inputs: r.News}, nil
}

func (p *provider) Diff(_ context.Context, r *rpc.DiffRequest) (*rpc.DiffResponse, error) {
	response := &rpc.DiffResponse{Changes: rpc.DiffResponse_DIFF_NONE}
	for _, name := range []string{"value", "key", "gate", "fail"} {
		if proto.Equal(r.OldInputs.GetFields()[name], r.News.GetFields()[name]) {
			continue
		}
		response.Changes = rpc.DiffResponse_DIFF_SOME
		response.Diffs = append(response.Diffs, name)
		if name == "key" {
			response.Replaces = append(response.Replaces, name)
		}
	}
	return response, nil
}

func (p *provider) Create(_ context.Context, r *rpc.CreateRequest) (*rpc.CreateResponse, error) {
	if r.Preview {
		return &rpc.CreateResponse{Properties: r.Properties}, nil
	}
	for gate := text(r.Properties, "gate"); gate != ""; {
		if _, err := os.Stat(gate); err == nil {
			break
		}
		select {
		case <-p.cancelled:
			return nil, failure("cancelled create", r.Urn)
		case <-time.After(20 * time.Millisecond):
		}
	}
	switch text(r.Properties, "fail") {
	case "create":
		return nil, failure("create", r.Urn)
	case "crash":
		_ = syscall.Kill(os.Getppid(), syscall.SIGKILL)
		select {}
	}
	return &rpc.CreateResponse{Id: fmt.Sprintf("id-%d", time.Now().UnixNano()), Properties: r.Properties}, nil
}

func (p *provider) Read(_ context.Context, r *rpc.ReadRequest) (*rpc.ReadResponse, error) {
	return &rpc.ReadResponse{Id: r.Id, Properties: r.Properties, Inputs: r.Inputs}, nil
}

func (p *provider) Update(_ context.Context, r *rpc.UpdateRequest) (*rpc.UpdateResponse, error) {
	if !r.Preview && text(r.News, "fail") == "update" {
		return nil, failure("update", r.Urn)
	}
	return &rpc.UpdateResponse{Properties: r.News}, nil
}

func (p *provider) Delete(_ context.Context, r *rpc.DeleteRequest) (*emptypb.Empty, error) {
	if text(r.Properties, "fail") == "delete" {
		return nil, failure("delete", r.Urn)
	}
	return &emptypb.Empty{}, nil
}

func (p *provider) Cancel(context.Context, *emptypb.Empty) (*emptypb.Empty, error) {
	close(p.cancelled)
	return &emptypb.Empty{}, nil
}

// Ends this process when Pulumi was killed.
func endWith(parent int) {
	for os.Getppid() == parent {
		time.Sleep(50 * time.Millisecond)
	}
	os.Exit(1)
}

func main() {
	go endWith(os.Getppid())
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	server := grpc.NewServer()
	rpc.RegisterResourceProviderServer(server, &provider{cancelled: make(chan struct{})})
	// Pulumi reads the port from the first line.
	fmt.Println(listener.Addr().(*net.TCPAddr).Port)
	if err := server.Serve(listener); err != nil {
		panic(err)
	}
}
