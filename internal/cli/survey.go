package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"

	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/problem"
	"github.com/proxima-mesh/proxima/internal/topology"
	"github.com/proxima-mesh/proxima/internal/topology/traffic"
)

// surveyFlags ask about all Services.
type surveyFlags struct {
	all        bool
	file       string
	url        string
	expression string
	unit       string
	tokenFile  string
	perGB      string
}

func (f *surveyFlags) add(to *pflag.FlagSet) {
	to.BoolVar(&f.all, "all", false, "compare all Services with what kube-proxy does, in the order of what a plan saves; --top N shows the first N")
	_ = to.SetAnnotation("all", commandLineOnly, nil) // delete has another one; the flag is there
	to.StringVar(&f.file, "traffic", "", "file with the traffic of Services in a month: CSV, JSON or YAML with namespace, service, gbPerMonth or connectionsPerMonth and, if known, fromZone and toZone; - is standard input, as CSV")
	to.StringVar(&f.url, "traffic-from", "", "URL of a Prometheus that knows the traffic; --traffic-query says how to ask it")
	to.StringVar(&f.expression, "traffic-query", "", "PromQL expression of the traffic per second, with the labels namespace, service and, if known, from_zone and to_zone")
	to.StringVar(&f.unit, "traffic-unit", string(traffic.Bytes), "what the expression counts: bytes or connections")
	to.StringVar(&f.tokenFile, "traffic-token-file", "", "file with a bearer token for --traffic-from")
	to.StringVar(&f.perGB, "price-per-gb", "", "[CURRENCY:]AMOUNT: one price for every GB that leaves its zone, such as 0.02 or EUR:0.02 (default currency: USD)")
}

// check what goes together. other flags ask about a situation, which is another question.
func (f *surveyFlags) check(price string, other int) error {
	switch {
	case !f.all && (f.file != "" || f.url != "" || f.expression != ""):
		return usagef("--traffic, --traffic-from and --traffic-query go with --all")
	case f.all && other > 0:
		return usagef("--all compares Services as they are: leave out --fail-zone, --shift-zone, --shift-node, --endpoints and --demand")
	case f.file != "" && f.url != "":
		return usagef("--traffic and --traffic-from: give one of them")
	case (f.url == "") != (f.expression == ""):
		return usagef("--traffic-from and --traffic-query go together: the URL of a Prometheus, and what to ask it")
	case f.tokenFile != "" && f.url == "":
		return usagef("--traffic-token-file goes with --traffic-from")
	case f.unit != string(traffic.Bytes) && f.unit != string(traffic.Connections):
		return usagef("--traffic-unit %q: bytes or connections", f.unit)
	case f.perGB != "" && price != "":
		return usagef("--price-per-gb and --price: give one of them")
	}
	return nil
}

// price that --price-per-gb stands for, as --price writes it; else that.
func (f *surveyFlags) price(price string) (string, error) {
	if f.perGB == "" {
		return price, nil
	}
	currency, amount, ok := strings.Cut(f.perGB, ":")
	if !ok {
		currency, amount = "USD", f.perGB
	}
	price = currency + ":" + amount + ":" + amount
	if _, err := topology.ParsePrice(price); err != nil {
		return "", usagef("--price-per-gb %q: write it as AMOUNT or CURRENCY:AMOUNT, such as 0.02 or EUR:0.02", f.perGB)
	}
	return price, nil
}

// traffic that the flags name; nil: none.
func (f *surveyFlags) traffic(ctx context.Context, in io.Reader) ([]traffic.Entry, error) {
	switch {
	case f.url != "":
		return f.fromPrometheus(ctx)
	case f.file == "-":
		data, err := io.ReadAll(io.LimitReader(in, traffic.MaxFileBytes+1))
		if err != nil {
			return nil, fmt.Errorf("--traffic: standard input: %w", err)
		}
		entries, err := traffic.Parse("standard input", data)
		return entries, asUsage("--traffic", err)
	case f.file != "":
		data, err := os.ReadFile(f.file)
		if err != nil {
			return nil, &problem.Error{Code: problem.Usage, Err: fmt.Errorf("--traffic: %w", err)}
		}
		entries, err := traffic.Parse(f.file, data)
		return entries, asUsage("--traffic", err)
	}
	return nil, nil
}

// asUsage is the error of a flag's file.
func asUsage(flag string, err error) error {
	if err == nil {
		return nil
	}
	return usagef("%s: %w", flag, err)
}

// prometheusTimeout of an expression; that of Prometheus itself is 2 min (--query.timeout).
const prometheusTimeout = 2 * time.Minute

func (f *surveyFlags) fromPrometheus(ctx context.Context) ([]traffic.Entry, error) {
	p := &traffic.Prometheus{URL: f.url}
	if f.tokenFile != "" {
		token, err := os.ReadFile(f.tokenFile) // tokens that Kubernetes mounts can be read by all of a pod
		if err != nil {
			return nil, usagef("--traffic-token-file: %w", err)
		}
		p.Header = http.Header{"Authorization": {"Bearer " + strings.TrimSpace(string(token))}}
	}
	ctx, cancel := context.WithTimeout(ctx, prometheusTimeout)
	defer cancel()
	entries, err := p.Query(ctx, f.expression, traffic.Unit(f.unit))
	if err != nil {
		return nil, &problem.Error{
			Code: problem.TrafficUnavailable, Err: fmt.Errorf("--traffic-from: %w", err),
			Hint: "try the expression in the server's own interface; examples are in \"proxima docs how-to/kubernetes-planner\"",
		}
	}
	if len(entries) == 0 {
		return nil, &problem.Error{
			Code: problem.TrafficUnavailable, Err: fmt.Errorf("--traffic-from: the expression has no result"),
			Hint: "are the metrics of the expression scraped? try a part of it in the server's own interface",
		}
	}
	return entries, nil
}

// survey asks and prints.
func (s *settings) survey(cmd *cobra.Command, f surveyFlags, top int, price string, bytes []string, output string) error {
	price, err := f.price(price)
	if err != nil {
		return err
	}
	cfg, namespace, err := s.restConfig()
	if err != nil {
		return err
	}
	query, err := moneyOf(namespace, top, price, bytes)
	if err != nil {
		return err
	}
	if query.Traffic, err = f.traffic(cmd.Context(), cmd.InOrStdin()); err != nil {
		return err
	}
	var answer topology.Survey
	if err := callJSON(cmd.Context(), patient(cfg), http.MethodPost, admin.SurveyPath, &query, &answer); err != nil {
		return explainAPI(cfg, err)
	}
	if output == "json" || output == "yaml" {
		return printValue(s.io.Out, &answer, output)
	}
	_, err = io.WriteString(s.io.Out, answer.Text())
	return err
}

// surveyTimeout: 10,000 Services take seconds.
const surveyTimeout = 2 * time.Minute

func patient(cfg *rest.Config) *rest.Config {
	cfg = rest.CopyConfig(cfg)
	cfg.Timeout = surveyTimeout
	return cfg
}

// moneyOf the flags about money, checked as moneyQuery does it.
func moneyOf(namespace string, top int, price string, bytes []string) (admin.SurveyRequest, error) {
	query := map[string][]string{}
	if err := moneyQuery(query, namespace, top, price, bytes); err != nil {
		return admin.SurveyRequest{}, err
	}
	request := admin.SurveyRequest{Price: price, Bytes: query["bytes"]}
	var err error
	if text := cmp.Or(append(query["top"], "")...); text != "" {
		request.Top, err = strconv.Atoi(text)
	}
	return request, err
}
