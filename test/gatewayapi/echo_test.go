package gatewayapi

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	pb "sigs.k8s.io/gateway-api/conformance/echo-basic/grpcechoserver"
)

// The image of the suite's Pods, echo-advanced, is a server, and a client that the suite runs in the Pods.
// These are a server and a client that take the same arguments, and whose client prints what the suite reads:
// lines KEY=VALUE, and an empty line after each response (conformance/utils/echo, ParseResponse). The
// messages of gRPC are those of the suite's own echo-basic.
const (
	echoServer = "server"
	echoClient = "client"
)

// Ports of the image where its arguments name none.
const (
	defaultHTTPPort = "8080"
	defaultGRPCPort = "7070"
)

// list is a flag that can be given several times.
type list []string

func (l *list) String() string     { return strings.Join(*l, ",") }
func (l *list) Set(v string) error { *l = append(*l, v); return nil }

// serve answers on the ports of the arguments until one of them fails. Those with TLS are left out: no
// case of meshes asks them.
func serve(args []string) error {
	var plain, tls list
	flags := flag.NewFlagSet(echoServer, flag.ContinueOnError)
	flags.Var(&plain, "port", "port of HTTP")
	flags.Var(&tls, "tls", "those ports that have TLS")
	grpcPort := flags.String("grpc", defaultGRPCPort, "port of gRPC")
	tcpPort := flags.String("tcp", "", "port that answers with the name of the Pod")
	flags.String("crt", "", "not used")
	flags.String("key", "", "not used")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if len(plain) == 0 {
		plain = list{defaultHTTPPort}
	}
	ended := make(chan error)
	listen := func(port string, serve func(net.Listener) error) error {
		l, err := net.Listen("tcp", ":"+port)
		if err == nil {
			go func() { ended <- serve(l) }()
		}
		return err
	}
	server := &http.Server{Handler: http.HandlerFunc(answer), ReadHeaderTimeout: requestTimeout}
	for _, port := range plain {
		if strings.Contains(","+tls.String()+",", ","+port+",") {
			continue
		}
		if err := listen(port, server.Serve); err != nil {
			return err
		}
	}
	calls := grpc.NewServer()
	pb.RegisterGrpcEchoServer(calls, grpcEcho{})
	if err := listen(*grpcPort, calls.Serve); err != nil {
		return err
	}
	if *tcpPort != "" {
		if err := listen(*tcpPort, serveTCP); err != nil {
			return err
		}
	}
	return <-ended
}

// podName is that of the Pod, as container runtimes set it.
func podName() string { return os.Getenv("HOSTNAME") }

func answer(w http.ResponseWriter, r *http.Request) {
	out := fmt.Sprintf("Hostname=%s\nHost=%s\nMethod=%s\nProto=%s\nURL=%s\n", podName(), r.Host, r.Method, r.Proto, r.URL)
	if at, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok {
		if _, port, err := net.SplitHostPort(at.String()); err == nil {
			out += "ServicePort=" + port + "\n"
		}
	}
	out += lines("RequestHeader", r.Header)
	w.Header().Set("Content-Type", "text/plain")
	_, _ = io.WriteString(w, out)
}

func lines(name string, of map[string][]string) string {
	var b strings.Builder
	for key, values := range of {
		for _, v := range values {
			fmt.Fprintf(&b, "%s=%s:%s\n", name, key, v)
		}
	}
	return b.String()
}

func serveTCP(l net.Listener) error {
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		_, _ = io.WriteString(c, "Hostname="+podName()+"\n")
		_ = c.Close()
	}
}

type grpcEcho struct{ pb.UnimplementedGrpcEchoServer }

func (grpcEcho) Echo(ctx context.Context, _ *pb.EchoRequest) (*pb.EchoResponse, error) {
	a := &pb.Assertions{Context: &pb.Context{Pod: podName()}}
	md, _ := metadata.FromIncomingContext(ctx)
	for key, values := range md {
		for _, v := range values {
			a.Headers = append(a.Headers, &pb.Header{Key: key, Value: v})
		}
	}
	return &pb.EchoResponse{Assertions: a}, nil
}

// requestTimeout of one request.
const requestTimeout = 10 * time.Second

// call does what the arguments of a client say: URL [--method=M] [-H NAME:VALUE]... [--count=N].
func call(args []string) error {
	if len(args) == 0 {
		return fmt.Errorf("usage: %s URL [flags]", echoClient)
	}
	target, err := url.Parse(args[0])
	if err != nil {
		return err
	}
	var headers list
	flags := flag.NewFlagSet(echoClient, flag.ContinueOnError)
	method := flags.String("method", http.MethodGet, "method of HTTP")
	count := flags.Int("count", 1, "how many requests")
	flags.Var(&headers, "H", "header of the request, NAME:VALUE")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	one := func() (string, error) { return request(target, *method, headers) }
	if target.Scheme == "grpc" {
		conn, err := grpc.NewClient("passthrough:///"+target.Host, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return err
		}
		defer conn.Close()
		one = func() (string, error) { return callGRPC(pb.NewGrpcEchoClient(conn), headers) }
	}
	for range *count {
		text, err := one()
		if err != nil {
			return err
		}
		fmt.Println(text) // and an empty line
	}
	return nil
}

// httpClient tells of redirects, and does not follow them.
var httpClient = &http.Client{
	Timeout: requestTimeout, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

func request(to *url.URL, method string, headers []string) (string, error) {
	req, err := http.NewRequest(method, to.String(), nil)
	if err != nil {
		return "", err
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ":")
		if strings.EqualFold(name, "Host") {
			req.Host = value
			continue
		}
		req.Header.Add(name, value)
	}
	answer, err := httpClient.Do(req)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		return "", err
	}
	out := "StatusCode=" + strconv.Itoa(answer.StatusCode) + "\n" + lines("ResponseHeader", answer.Header)
	if answer.StatusCode == http.StatusOK {
		out += string(body)
	}
	return out, nil
}

// callGRPC reports a response as one of HTTP, as the image does.
func callGRPC(client pb.GrpcEchoClient, headers []string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), requestTimeout)
	defer cancel()
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ":")
		ctx = metadata.AppendToOutgoingContext(ctx, name, value)
	}
	var md metadata.MD
	answer, err := client.Echo(ctx, &pb.EchoRequest{}, grpc.Header(&md))
	if err != nil {
		return "", err
	}
	a := answer.GetAssertions()
	out := "StatusCode=200\n" + lines("ResponseHeader", md) + "Hostname=" + a.GetContext().GetPod() + "\n"
	for _, h := range a.GetHeaders() {
		out += fmt.Sprintf("RequestHeader=%s:%s\n", h.GetKey(), h.GetValue())
	}
	return out, nil
}
