// A shop of three applications of dubbo-go, which find each other in the registry at $REGISTRY, as they would in Nacos:
// two services, stock and orders, of which orders calls stock, and a shopper, who calls orders. Nothing here
// is of Proxima.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"dubbo.apache.org/dubbo-go/v3"
	"dubbo.apache.org/dubbo-go/v3/client"
	"dubbo.apache.org/dubbo-go/v3/common"
	"dubbo.apache.org/dubbo-go/v3/common/constant"
	_ "dubbo.apache.org/dubbo-go/v3/imports"
	"dubbo.apache.org/dubbo-go/v3/protocol"
	"dubbo.apache.org/dubbo-go/v3/protocol/triple/triple_protocol"
	"dubbo.apache.org/dubbo-go/v3/registry"
	"dubbo.apache.org/dubbo-go/v3/server"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// Service answers a request for some goods.
type Service interface {
	Ask(ctx context.Context, goods *wrapperspb.StringValue) (*wrapperspb.StringValue, error)
}

// Stock says how much there is.
type Stock struct{}

// Ask implements Service.
func (*Stock) Ask(_ context.Context, goods *wrapperspb.StringValue) (*wrapperspb.StringValue, error) {
	return wrapperspb.String("7 of " + goods.GetValue() + " in stock"), nil
}

// Orders takes orders of what is in stock.
type Orders struct{ stock *client.Connection }

// Ask implements Service.
func (o *Orders) Ask(ctx context.Context, goods *wrapperspb.StringValue) (*wrapperspb.StringValue, error) {
	stock, err := ask(ctx, o.stock, goods.GetValue())
	if err != nil {
		return nil, err
	}
	return wrapperspb.String("ordered; " + stock), nil
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 || os.Getenv("REGISTRY") == "" {
		return errors.New("usage: REGISTRY=HOST:PORT dubbo-go stock PORT | orders PORT | shopper")
	}
	instance, err := dubbo.NewInstance(dubbo.WithName(args[0]),
		dubbo.WithRegistry(registry.WithNacos(), registry.WithAddress(os.Getenv("REGISTRY")), registry.WithRegisterService()))
	if err != nil {
		return err
	}
	switch {
	case args[0] == "stock" && len(args) == 2:
		return serve(instance, "shop.Stock", args[1], &Stock{})
	case args[0] == "orders" && len(args) == 2:
		stock, err := dial(instance, "shop.Stock")
		if err != nil {
			return err
		}
		return serve(instance, "shop.Orders", args[1], &Orders{stock})
	case args[0] == "shopper":
		return shop(instance)
	}
	return fmt.Errorf("%q is none of stock PORT, orders PORT and shopper", args)
}

// serve an interface by Triple until the process is ended.
func serve(instance *dubbo.Instance, name, port string, handler Service) error {
	n, err := strconv.Atoi(port)
	if err != nil {
		return fmt.Errorf("port: %w", err)
	}
	s, err := instance.NewServer(server.WithServerProtocol(protocol.WithTriple(), protocol.WithID("only"), protocol.WithPort(n), protocol.WithIp("127.0.0.1")),
		server.WithServerProtocolIDs([]string{"only"}))
	if err != nil {
		return err
	}
	err = s.Register(handler, &common.ServiceInfo{
		InterfaceName: name, ServiceType: (*Service)(nil),
		Methods: []common.MethodInfo{{
			Name: "Ask", Type: constant.CallUnary, ReqInitFunc: func() any { return new(wrapperspb.StringValue) },
			MethodFunc: func(ctx context.Context, args []any, handler any) (any, error) {
				out, err := handler.(Service).Ask(ctx, args[0].(*wrapperspb.StringValue))
				return triple_protocol.NewResponse(out), err
			},
		}},
	})
	if err != nil {
		return err
	}
	return s.Serve()
}

func dial(instance *dubbo.Instance, name string) (*client.Connection, error) {
	c, err := instance.NewClient(client.WithClientNoCheck(), client.WithClientProtocolTriple())
	if err != nil {
		return nil, err
	}
	return c.DialWithInfo(name, &client.ClientInfo{InterfaceName: name, MethodNames: []string{"Ask"}})
}

func ask(ctx context.Context, service *client.Connection, goods string) (string, error) {
	out := new(wrapperspb.StringValue)
	err := service.CallUnary(ctx, []any{wrapperspb.String(goods)}, out, "Ask")
	return out.GetValue(), err
}

// shop prints a line for each call, two a second, until the process is ended. Before both services are
// there, calls fail, which is no error.
func shop(instance *dubbo.Instance) error {
	orders, err := dial(instance, "shop.Orders")
	if err != nil {
		return err
	}
	for n := 1; ; n++ {
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
		answer, err := ask(ctx, orders, "apples")
		cancel()
		if err != nil {
			fmt.Printf("call %d failed: %.60s…\n", n, err.Error())
		} else {
			fmt.Printf("call %d: %s\n", n, answer)
		}
		time.Sleep(500 * time.Millisecond)
	}
}
