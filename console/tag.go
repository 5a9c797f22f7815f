package console

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/period"
	"github.com/march-id/march/allocator/texts"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/operator"
	"github.com/march-id/march/internal/problem"
	"github.com/march-id/march/internal/setting"
)

// tags answers about single tags, and changes them.
type tags struct {
	*view
	texts *texts.Cache // without a key: rooms have them
}

func (s *tags) CreateTag(ctx context.Context, r *marchv1.CreateTagRequest) (*marchv1.CreateTagResponse, error) {
	name, err := allocator.ParseTag(r.GetTag().GetName())
	if err != nil {
		return nil, err
	}
	settings, err := setting.New(r.GetTag())
	if err != nil {
		return nil, err
	}
	if err := cmp.Or(settings.Validate(), settings.CheckFormat()); err != nil {
		return nil, err
	}
	if settings.Limit != allocator.MaxID || settings.Period != (period.Period{}) {
		stored, _, err := s.admin.LastLayout(ctx)
		if err == nil {
			err = settings.CheckBlocks(stored.Layout.Boundary)
		}
		if err != nil {
			return nil, err
		}
	}
	if err := s.mayHold(ctx, settings); err != nil {
		return nil, err
	}
	var tag record.Tag
	var risk error
	switch actor := operator.Actor(ctx); {
	case r.GetFresh() && r.GetReuse():
		err = allocator.Errorf(allocator.Invalid, "fresh, reuse: both; allowed: one")
	case r.GetFresh():
		tag, err = s.admin.CreateFreshTag(ctx, name, settings, actor)
	case r.GetReuse():
		tag, risk, err = s.admin.ReuseTag(ctx, name, settings, actor)
	default:
		tag, err = s.admin.CreateTag(ctx, name, settings, actor)
	}
	if err != nil {
		return nil, err
	}
	answer := &marchv1.CreateTagResponse{Tag: setting.ToProto(tag)}
	if risk != nil {
		answer.Risk = risk.Error()
	}
	return answer, nil
}

// mayHold refuses a tag with an order where an instance reports that its user in etcd may not write the keys of
// holders.
func (s *tags) mayHold(ctx context.Context, settings record.TagSettings) error {
	if settings.StrictOrder == "" {
		return nil
	}
	keys := "/holders/"
	if settings.StrictOrder == record.OrderCluster {
		keys = "/orders/"
	}
	s.readAnswers(ctx)
	instances := s.last.Load().answers.instances
	for _, id := range slices.Sorted(maps.Keys(instances)) {
		for _, p := range instances[id].status.GetProblems() {
			if p.GetRemedy() == problem.EtcdRights.Remedy && strings.Contains(p.GetWhat(), keys) {
				return allocator.Errorf(allocator.Refused, "strict_order: %s: %s; `%s` prints the grant",
					settings.StrictOrder, p.GetWhat(), p.GetCommand())
			}
		}
	}
	return nil
}

func (s *tags) GetTag(ctx context.Context, r *marchv1.GetTagRequest) (*marchv1.GetTagResponse, error) {
	name, err := allocator.ParseTag(r.GetName())
	if err != nil {
		return nil, err
	}
	tag, err := s.admin.Tag(ctx, name)
	if err != nil {
		return nil, err
	}
	now, err := s.fresh(ctx)
	if err != nil {
		return nil, err
	}
	marks, bad, err := s.admin.MarksIn(ctx, now.Layout.Ever, name)
	if err != nil {
		return nil, err
	}
	answer := &marchv1.GetTagResponse{Tag: setting.ToProto(tag), Marks: marksToProto(marks),
		Unreadable: passedOver(bad)}
	if tag.Time != nil { // a time tag has no chains
		answer.Slices, err = s.slicesIn(ctx, "", tag.Time.WorkerBits)
		return answer, err
	}
	answer.Chains, answer.Silent = s.askChains(ctx, now.instances, name)
	return answer, nil
}

// marksToProto returns the marks of a tag, by room.
func marksToProto(marks map[allocator.Room]record.Mark) []*marchv1.Mark {
	list := make([]*marchv1.Mark, 0, len(marks))
	for _, room := range slices.Sorted(maps.Keys(marks)) {
		m := marks[room]
		list = append(list, &marchv1.Mark{Room: string(room), Next: m.Next, Version: m.Last().Version})
	}
	return list
}

func (s *tags) ListTags(ctx context.Context, r *marchv1.ListTagsRequest) (*marchv1.ListTagsResponse, error) {
	size, err := api.PageSize(r.GetPageSize())
	if err != nil {
		return nil, err
	}
	prefix := r.GetPrefix()
	after, shared, err := parseTagToken(r.GetPageToken())
	if err != nil {
		return nil, err
	}
	if prefix != "" {
		if _, err := allocator.ParseTag(prefix); err != nil {
			return nil, allocator.Errorf(allocator.Invalid, "prefix: not the beginning of a tag: %w", err)
		}
	}
	list := s.admin.Tags
	if r.GetDeleted() {
		list = s.admin.DeletedTags
	}
	tags, bad, err := list(ctx, prefix, after, shared, size+1)
	if err != nil {
		return nil, err
	}
	answer := &marchv1.ListTagsResponse{Unreadable: passedOver(bad)}
	var last *record.Tag
	if answer.Tags, last = page(tags, size, setting.ToProto); last != nil {
		answer.NextPageToken = tagToken(tags[0].Name, last.Name)
	}
	return answer, nil
}

// tagToken returns the token of the page that follows one with these first and last
// names: the last name, and how many bytes the two names have in common, which Tags
// needs.
func tagToken(first, last allocator.Tag) string {
	shared := 0
	for shared < min(len(first), len(last)) && first[shared] == last[shared] {
		shared++
	}
	return string(last) + ":" + strconv.Itoa(shared)
}

// parseTagToken reads a token of ListTags. An earlier version's has the name only.
func parseTagToken(token string) (after allocator.Tag, shared int, err error) {
	if token == "" {
		return "", 0, nil
	}
	name, rest, found := strings.Cut(token, ":")
	if after, err = allocator.ParseTag(name); err == nil && found {
		shared, err = strconv.Atoi(rest)
	}
	if err != nil || shared < 0 || shared > len(name) {
		return "", 0, allocator.Errorf(allocator.Invalid, "page_token: %q is not from an answer of ListTags", token)
	}
	return after, shared, nil
}

func (s *tags) DeleteTag(ctx context.Context, r *marchv1.DeleteTagRequest) (*marchv1.DeleteTagResponse, error) {
	name, err := allocator.ParseTag(r.GetName())
	if err != nil {
		return nil, err
	}
	if r.GetForget() {
		err = s.admin.ForgetTag(ctx, name, operator.Actor(ctx))
	} else {
		err = s.admin.DeleteTagAt(ctx, name, r.GetIfRevision(), operator.Actor(ctx))
	}
	return &marchv1.DeleteTagResponse{}, err
}

func (s *tags) UpdateTag(ctx context.Context, r *marchv1.UpdateTagRequest) (*marchv1.UpdateTagResponse, error) {
	answer, err := operator.UpdateTag(ctx, s.admin, r)
	if err == nil && r.GetDryRun() {
		return answer, s.addChainEffect(ctx, r.GetTag(), answer)
	}
	if err == nil && r.GetTag().Limit != nil {
		answer.Behind = s.behind(ctx, answer.GetTag())
	}
	return answer, err
}

// addChainEffect adds to a dry run what the change does to the instances that hold the tag.
func (s *tags) addChainEffect(ctx context.Context, change *marchv1.Tag, answer *marchv1.UpdateTagResponse) error {
	if change.Reserve == nil && change.MinStep == nil && change.MaxStep == nil {
		return nil
	}
	name := allocator.Tag(answer.GetTag().GetName())
	tag, err := s.admin.Tag(ctx, name)
	if err != nil {
		return err
	}
	before, after := tag.Chain(), tag.Chain()
	after.MinStep, after.MaxStep, after.Reserve = answer.GetTag().GetMinStep(), answer.GetTag().GetMaxStep(),
		answer.GetTag().GetReserve().AsDuration()
	if before == after {
		return nil
	}
	instances, err := s.instances(ctx)
	if err != nil {
		return err
	}
	chains, _ := s.askChains(ctx, instances, name)
	var was, is int64
	for _, c := range chains {
		was, is = atMost(was, before.Target(c.GetPeak(), time.Now())), atMost(is, after.Target(c.GetPeak(), time.Now()))
	}
	effect := fmt.Sprintf("At the present rates the instances that hold the tag (%d) aim for %d IDs in memory "+
		"together; now for %d.", len(chains), is, was)
	if len(chains) == 0 {
		effect = fmt.Sprintf("No instance holds the tag now. The first lease of an instance takes %d IDs.",
			after.MinStep)
	}
	answer.Effects = append(answer.Effects, effect)
	return nil
}

func (s *tags) SkipTag(ctx context.Context, r *marchv1.SkipTagRequest) (*marchv1.SkipTagResponse, error) {
	answer, err := operator.SkipTag(ctx, s.admin, r)
	if err == nil {
		answer.Behind = s.behind(ctx, answer.GetTag())
	}
	return answer, err
}

// followWithin is how long an operator's call waits for instances to apply a
// change.
const (
	followWithin = 3 * time.Second // less than the command line waits for an answer
	followPoll   = 20 * time.Millisecond
)

// behind waits until every instance that answers holds only IDs that the tag's skips and
// limit allow. After followWithin it returns the instances that still do not, and those
// that do not answer, or why that is not known. The change is stored by then, so none of
// this is an error.
func (s *tags) behind(ctx context.Context, tag *marchv1.Tag) (behind []string) {
	ctx, cancel := context.WithTimeout(ctx, followWithin)
	defer cancel()
	instances, err := s.instances(ctx)
	if err != nil {
		return []string{"not known: " + err.Error()}
	}
	for {
		chains, silent := s.askChains(ctx, instances, allocator.Tag(tag.GetName()))
		behind = silent
		for _, c := range chains {
			if c.GetHeld() > 0 && (c.GetFirst() < max(tag.GetSkip(), tag.GetSkips()[c.GetRoom()]) ||
				c.GetEnd() > tag.GetLimit()) {
				behind = append(behind, c.GetRoom()+"/"+c.GetInstance())
			}
		}
		if len(behind) == len(silent) {
			return behind
		}
		select {
		case <-ctx.Done():
			return behind
		case <-time.After(followPoll):
		}
	}
}

func (s *tags) PrescaleTag(ctx context.Context, r *marchv1.PrescaleTagRequest) (*marchv1.PrescaleTagResponse, error) {
	return operator.PrescaleTag(ctx, s.admin, r)
}

func (s *tags) Decode(ctx context.Context, r *marchv1.DecodeRequest) (*marchv1.DecodeResponse, error) {
	return operator.Decode(ctx, s.admin, r, s.texts)
}
