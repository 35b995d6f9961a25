package rule

import (
	"fmt"
	"math"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/checker"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/ext"
)

// Names that expressions find their input under.
const (
	nameService   = "service"
	nameZones     = "zones"
	nameEndpoints = "endpoints"
	nameEndpoint  = "endpoint"
	nameZone      = "zone" // in weight only
)

// environment of variables: what all rules share. It is made once, as that takes
// long, and never changed.
var environment = sync.OnceValues(func() (*cel.Env, error) {
	return cel.NewEnv(
		ext.NativeTypes(reflect.TypeFor[Service](), reflect.TypeFor[Zone](), reflect.TypeFor[Endpoint](), ext.ParseStructTags(true)),
		cel.Variable(nameService, cel.ObjectType("rule.Service")),
		cel.Variable(nameZones, cel.ListType(cel.ObjectType("rule.Zone"))),
		cel.Variable(nameEndpoints, cel.ListType(cel.ObjectType("rule.Endpoint"))),
		cel.CrossTypeNumericComparisons(true),
		cel.DefaultUTCTimeZone(true),
		cel.ParserExpressionSizeLimit(MaxExpression),
		cel.ParserRecursionLimit(maxNesting),
		// Sets brings estimates of its costs; other extensions would pass for free.
		ext.Sets(),
	)
})

// Program is a rule that can be run. It is immutable and safe for concurrent use.
type Program struct {
	variables []variable
	zones     cel.Program // nil: weight says it alone
	weight    cel.Program // nil: all weigh alike
	fallback  Fallback
	adapter   types.Adapter
	// Limits of all evaluations for a Service together.
	total   uint64
	timeout time.Duration
}

type variable struct {
	name    string
	program cel.Program
}

// identifier of CEL; reserved are its words, and what expressions see already.
var (
	identifier = regexp.MustCompile(`^[_a-zA-Z][_a-zA-Z0-9]{0,62}$`)
	reserved   = []string{
		"as", "break", "const", "continue", "else", "false", "for", "function", "if", "import", "in", "let", "loop",
		"package", "namespace", "null", "return", "true", "var", "void", "while",
		nameService, nameZones, nameEndpoints, nameEndpoint, "heuristic", "sets",
	}
)

// Compile checks a rule and makes a program of it. The error is Errors: everything that
// is wrong, with the field.
func Compile(spec Spec) (*Program, error) {
	env, err := environment()
	if err != nil {
		return nil, fmt.Errorf("environment of heuristics: %w", err)
	}
	p, errs := &Program{fallback: spec.Fallback, adapter: env.CELTypeAdapter(), total: maxTotal, timeout: Timeout}, Errors{}
	switch spec.Fallback {
	case All, Fail, None:
	case "":
		p.fallback = All
	default:
		errs.add("fallback", "%q: use All, Fail or None", spec.Fallback)
	}
	if len(spec.Variables) > MaxVariables {
		errs.add("variables", "%d, more than %d", len(spec.Variables), MaxVariables)
		return nil, errs
	}
	for i, v := range spec.Variables {
		field := fmt.Sprintf("variables[%d]", i)
		twice := slices.ContainsFunc(spec.Variables[:i], func(w Variable) bool { return w.Name == v.Name })
		switch {
		case !identifier.MatchString(v.Name):
			errs.add(field+".name", "%q: letters, digits and underscores, up to 63, not starting with a digit", v.Name)
			continue
		case slices.Contains(reserved, v.Name), v.Name == nameZone && spec.Weight != "":
			errs.add(field+".name", "%q has a meaning already", v.Name)
			continue
		case twice:
			errs.add(field+".name", "%q is there twice", v.Name)
			continue
		}
		program, output := compile(env, v.Expression, field+".expression", nil, &errs)
		if program == nil {
			continue
		}
		p.variables = append(p.variables, variable{v.Name, program})
		if env, err = env.Extend(cel.Variable(v.Name, output)); err != nil {
			errs.add(field, "%v", err)
			return nil, errs
		}
	}
	if len(p.variables) < len(spec.Variables) {
		return nil, errs // what uses the broken ones would fail for want of them
	}
	env, err = env.Extend(cel.Variable(nameEndpoint, cel.ObjectType("rule.Endpoint")))
	if err != nil {
		errs.add("zones", "%v", err)
		return nil, errs
	}
	if spec.Zones != "" || spec.Weight == "" {
		p.zones, _ = compile(env, spec.Zones, "zones", oneOf{cel.ListType(cel.StringType)}, &errs)
	}
	if spec.Weight != "" {
		env, err = env.Extend(cel.Variable(nameZone, cel.ObjectType("rule.Zone")))
		if err != nil {
			errs.add("weight", "%v", err)
			return nil, errs
		}
		p.weight, _ = compile(env, spec.Weight, "weight", oneOf{cel.DoubleType, cel.IntType, cel.UintType}, &errs)
	}
	if len(errs) > 0 {
		return nil, errs
	}
	return p, nil
}

// oneOf these types an expression must have; none: any.
type oneOf []*cel.Type

func (o oneOf) has(t *cel.Type) bool {
	return len(o) == 0 || slices.ContainsFunc(o, t.IsExactType)
}

func (o oneOf) String() string {
	names := make([]string, len(o))
	for i, t := range o {
		names[i] = t.String()
	}
	return strings.Join(names, " or ")
}

// compile one expression of a type that is wanted.
func compile(env *cel.Env, expression, field string, want oneOf, errs *Errors) (cel.Program, *cel.Type) {
	if strings.TrimSpace(expression) == "" {
		errs.add(field, "is needed")
		return nil, nil
	}
	if len(expression) > MaxExpression {
		errs.add(field, "%d bytes, more than %d", len(expression), MaxExpression)
		return nil, nil
	}
	checked, issues := env.Compile(expression)
	if issues != nil && issues.Err() != nil {
		errs.add(field, "%s", firstIssue(issues))
		return nil, nil
	}
	output := checked.OutputType()
	if !want.has(output) {
		errs.add(field, "is of type %s, not %s", output, want)
		return nil, nil
	}
	cost, err := env.EstimateCost(checked, sizes{})
	if err != nil {
		errs.add(field, "its cost cannot be estimated: %v", err)
		return nil, nil
	}
	if cost.Max > MaxCost {
		errs.add(field, "could cost %s for %d endpoints and %d zones, more than %d: put what is the same for all endpoints into variables",
			costText(cost.Max), maxEndpoints, maxZones, MaxCost)
		return nil, nil
	}
	program, err := env.Program(checked, cel.CostLimit(MaxCost), cel.EvalOptions(cel.OptTrackCost),
		cel.InterruptCheckFrequency(interruptEvery))
	if err != nil {
		errs.add(field, "%v", err)
		return nil, nil
	}
	return program, output
}

func costText(cost uint64) string {
	if cost == math.MaxUint64 {
		return "more than can be told"
	}
	return fmt.Sprint(cost)
}

// firstIssue on one line, with its place.
func firstIssue(issues *cel.Issues) string {
	list := issues.Errors()
	if len(list) == 0 {
		return issues.Err().Error()
	}
	first := list[0]
	text := strings.Join(strings.Fields(first.Message), " ")
	// The parser lists every token that it would have taken; two lines say enough.
	if len(text) > 300 {
		text = strings.ToValidUTF8(text[:300], "") + "…"
	}
	return fmt.Sprintf("line %d, column %d: %s", first.Location.Line(), first.Location.Column()+1, text)
}

// sizes are the largest that inputs are reckoned with. Real ones may be larger: then
// the limit of an evaluation holds.
type sizes struct{}

// EstimateSize implements checker.CostEstimator.
func (sizes) EstimateSize(element checker.AstNode) *checker.SizeEstimate {
	path := element.Path()
	switch element.Type().Kind() {
	case types.StringKind, types.BytesKind:
		return &checker.SizeEstimate{Max: maxText}
	case types.ListKind, types.MapKind:
		if len(path) > 0 && path[0] == nameZones {
			return &checker.SizeEstimate{Max: maxZones}
		}
		if element.Expr().Kind() == ast.ListKind {
			return nil // a literal: its size is seen
		}
		return &checker.SizeEstimate{Max: maxEndpoints}
	}
	return nil
}

// EstimateCallCost implements checker.CostEstimator.
func (sizes) EstimateCallCost(string, string, *checker.AstNode, []checker.AstNode) *checker.CallEstimate {
	return nil
}
