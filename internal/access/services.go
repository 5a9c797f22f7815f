package access

import (
	"context"

	"google.golang.org/grpc"

	"github.com/march-id/march/allocator"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/access/policy"
)

// Handlers of HTTP and the pages call a service directly, past gRPC's interceptors. They call
// it through these wrappers. A method that is missing here is not served, rather than
// served without a check.

// IDs returns a service whose calls the gate checks, for the subject of their context.
func (g *Gate) IDs(s marchv1.IDServiceServer) marchv1.IDServiceServer {
	if g == nil {
		return s
	}
	return &ids{gate: g, s: s}
}

// Room returns a service whose calls the gate checks, for the subject of their context.
func (g *Gate) Room(s marchv1.RoomServiceServer) marchv1.RoomServiceServer {
	if g == nil {
		return s
	}
	return &room{gate: g, s: s}
}

// Console returns a service whose calls the gate checks, for the subject of their context.
func (g *Gate) Console(s marchv1.ConsoleServiceServer) marchv1.ConsoleServiceServer {
	if g == nil {
		return s
	}
	return &console{gate: g, s: s}
}

// checked makes a call if its subject may make it.
func checked[Q, A any](ctx context.Context, g *Gate, method string, message *Q,
	call func(context.Context, *Q) (*A, error)) (*A, error) {
	if err := g.checkContext(ctx, method, message); err != nil {
		return nil, err
	}
	return call(ctx, message)
}

// checkContext checks a request of a context's subject.
func (g *Gate) checkContext(ctx context.Context, method string, message any) error {
	p := of(ctx)
	if p == nil { // the handler did not ask for it
		return allocator.Errorf(allocator.Unauthenticated, "no identity was proven")
	}
	s, err := g.fresh(ctx, p.subject, p.credentials)
	if err != nil {
		return err
	}
	return g.checkMessage(ctx, s, policy.CallOf(method), message)
}

// Take returns nil if a context's subject may take n IDs of a tag; a context without one is that
// of the peer's certificate, or an anonymous caller's. The doors for other systems' clients ask it before each call.
func (g *Gate) Take(ctx context.Context, tag string, n int64) error {
	if g == nil { // before the request is made: a door asks for each ID
		return nil
	}
	return g.door(ctx, policy.Request{Call: policy.CallOf(marchv1.IDService_NextBatch_FullMethodName),
		Tag: tag, IDs: n})
}

// Knows reports whether Take knows a context's subject without asking an issuer of tokens.
func (g *Gate) Knows(ctx context.Context) bool {
	if g == nil {
		return true
	}
	p := of(ctx)
	return p == nil || p.subject.current(g.current.Load())
}

// MayCreate returns nil if a context's subject may create a tag at a door.
func (g *Gate) MayCreate(ctx context.Context, tag string) error {
	return g.door(ctx, policy.Request{Call: policy.CallOf(marchv1.ConsoleService_CreateTag_FullMethodName), Tag: tag})
}

// MayRead returns nil if a context's subject may read where a tag is: it may decode the tag's
// IDs, as issuers and viewers may.
func (g *Gate) MayRead(ctx context.Context, tag string) error {
	return g.door(ctx, policy.Request{Call: policy.CallOf(marchv1.IDService_Decode_FullMethodName), Tag: tag})
}

func (g *Gate) door(ctx context.Context, r policy.Request) error {
	if g == nil {
		return nil
	}
	var s *Subject
	var err error
	if p := of(ctx); p != nil {
		s, err = g.fresh(ctx, p.subject, p.credentials)
	} else {
		s, err = g.Authenticate(ctx, Credentials{Certificate: certificateOf(ctx)})
	}
	if err != nil {
		g.refused(ctx, "unknown", r.Call, r.Tag, err)
		return err
	}
	return g.Check(ctx, s, r)
}

// checkedStream checks each answer of a call: it may take long.
type checkedStream[A any] struct {
	grpc.ServerStreamingServer[A]
	ctx   context.Context
	check func() error
}

// checkedAnswers makes a call with many answers if its subject may make it, and as long as it
// may.
func checkedAnswers[Q, A any](g *Gate, method string, message *Q, stream grpc.ServerStreamingServer[A],
	call func(*Q, grpc.ServerStreamingServer[A]) error) error {
	ctx := stream.Context()
	check := func() error { return g.checkContext(ctx, method, message) }
	if err := check(); err != nil {
		return err
	}
	lasts, lasting := g.last(ctx, *of(ctx), policy.CallOf(method))
	return g.over(lasts, lasting, call(message, &checkedStream[A]{stream, lasts, check}))
}

// Context implements grpc.ServerStream.
func (s *checkedStream[A]) Context() context.Context { return s.ctx }

// Send implements grpc.ServerStreamingServer.
func (s *checkedStream[A]) Send(answer *A) error {
	if err := s.check(); err != nil {
		return err
	}
	return s.ServerStreamingServer.Send(answer)
}

// ids is a IDService whose calls are checked.
type ids struct {
	marchv1.UnimplementedIDServiceServer
	gate *Gate
	s    marchv1.IDServiceServer
}

func (g *ids) Next(ctx context.Context, r *marchv1.NextRequest) (*marchv1.NextResponse, error) {
	return checked(ctx, g.gate, marchv1.IDService_Next_FullMethodName, r, g.s.Next)
}

func (g *ids) NextBatch(ctx context.Context, r *marchv1.NextBatchRequest) (*marchv1.NextBatchResponse, error) {
	return checked(ctx, g.gate, marchv1.IDService_NextBatch_FullMethodName, r, g.s.NextBatch)
}

func (g *ids) NextMany(ctx context.Context, r *marchv1.NextManyRequest) (*marchv1.NextManyResponse, error) {
	return checked(ctx, g.gate, marchv1.IDService_NextMany_FullMethodName, r, g.s.NextMany)
}

func (g *ids) Lease(ctx context.Context, r *marchv1.LeaseRequest) (*marchv1.LeaseResponse, error) {
	return checked(ctx, g.gate, marchv1.IDService_Lease_FullMethodName, r, g.s.Lease)
}

func (g *ids) ParseText(ctx context.Context, r *marchv1.ParseTextRequest) (*marchv1.ParseTextResponse, error) {
	return checked(ctx, g.gate, marchv1.IDService_ParseText_FullMethodName, r, g.s.ParseText)
}

func (g *ids) Decode(ctx context.Context, r *marchv1.DecodeRequest) (*marchv1.DecodeResponse, error) {
	return checked(ctx, g.gate, marchv1.IDService_Decode_FullMethodName, r, g.s.Decode)
}

// room is a RoomService whose calls are checked.
type room struct {
	marchv1.UnimplementedRoomServiceServer
	gate *Gate
	s    marchv1.RoomServiceServer
}

func (g *room) GetInstance(ctx context.Context, r *marchv1.GetInstanceRequest) (*marchv1.GetInstanceResponse, error) {
	return checked(ctx, g.gate, marchv1.RoomService_GetInstance_FullMethodName, r, g.s.GetInstance)
}

func (g *room) GetChain(ctx context.Context, r *marchv1.GetChainRequest) (*marchv1.GetChainResponse, error) {
	return checked(ctx, g.gate, marchv1.RoomService_GetChain_FullMethodName, r, g.s.GetChain)
}

func (g *room) ListChains(ctx context.Context, r *marchv1.ListChainsRequest) (*marchv1.ListChainsResponse, error) {
	return checked(ctx, g.gate, marchv1.RoomService_ListChains_FullMethodName, r, g.s.ListChains)
}

func (g *room) GetInstanceHistory(ctx context.Context,
	r *marchv1.GetInstanceHistoryRequest) (*marchv1.GetInstanceHistoryResponse, error) {
	return checked(ctx, g.gate, marchv1.RoomService_GetInstanceHistory_FullMethodName, r, g.s.GetInstanceHistory)
}

func (g *room) UpdateTag(ctx context.Context, r *marchv1.UpdateTagRequest) (*marchv1.UpdateTagResponse, error) {
	return checked(ctx, g.gate, marchv1.RoomService_UpdateTag_FullMethodName, r, g.s.UpdateTag)
}

func (g *room) SkipTag(ctx context.Context, r *marchv1.SkipTagRequest) (*marchv1.SkipTagResponse, error) {
	return checked(ctx, g.gate, marchv1.RoomService_SkipTag_FullMethodName, r, g.s.SkipTag)
}

func (g *room) PrescaleTag(ctx context.Context, r *marchv1.PrescaleTagRequest) (*marchv1.PrescaleTagResponse, error) {
	return checked(ctx, g.gate, marchv1.RoomService_PrescaleTag_FullMethodName, r, g.s.PrescaleTag)
}

func (g *room) ReportMarks(r *marchv1.ReportMarksRequest,
	stream grpc.ServerStreamingServer[marchv1.ReportMarksResponse]) error {
	return checkedAnswers(g.gate, marchv1.RoomService_ReportMarks_FullMethodName, r, stream, g.s.ReportMarks)
}

// console is a ConsoleService whose calls are checked.
type console struct {
	marchv1.UnimplementedConsoleServiceServer
	gate *Gate
	s    marchv1.ConsoleServiceServer
}

func (g *console) GetOverview(ctx context.Context,
	r *marchv1.GetOverviewRequest) (*marchv1.GetOverviewResponse, error) {
	return checked(ctx, g.gate, marchv1.ConsoleService_GetOverview_FullMethodName, r, g.s.GetOverview)
}

func (g *console) GetHistory(ctx context.Context, r *marchv1.GetHistoryRequest) (*marchv1.GetHistoryResponse, error) {
	return checked(ctx, g.gate, marchv1.ConsoleService_GetHistory_FullMethodName, r, g.s.GetHistory)
}

func (g *console) GetCapacity(ctx context.Context,
	r *marchv1.GetCapacityRequest) (*marchv1.GetCapacityResponse, error) {
	return checked(ctx, g.gate, marchv1.ConsoleService_GetCapacity_FullMethodName, r, g.s.GetCapacity)
}

func (g *console) InitLayout(ctx context.Context, r *marchv1.InitLayoutRequest) (*marchv1.InitLayoutResponse, error) {
	return checked(ctx, g.gate, marchv1.ConsoleService_InitLayout_FullMethodName, r, g.s.InitLayout)
}

func (g *console) GetLayout(ctx context.Context, r *marchv1.GetLayoutRequest) (*marchv1.GetLayoutResponse, error) {
	return checked(ctx, g.gate, marchv1.ConsoleService_GetLayout_FullMethodName, r, g.s.GetLayout)
}

func (g *console) ListLayouts(ctx context.Context,
	r *marchv1.ListLayoutsRequest) (*marchv1.ListLayoutsResponse, error) {
	return checked(ctx, g.gate, marchv1.ConsoleService_ListLayouts_FullMethodName, r, g.s.ListLayouts)
}

func (g *console) ValidateLayout(ctx context.Context,
	r *marchv1.ValidateLayoutRequest) (*marchv1.ValidateLayoutResponse, error) {
	return checked(ctx, g.gate, marchv1.ConsoleService_ValidateLayout_FullMethodName, r, g.s.ValidateLayout)
}

func (g *console) CreateTag(ctx context.Context, r *marchv1.CreateTagRequest) (*marchv1.CreateTagResponse, error) {
	return checked(ctx, g.gate, marchv1.ConsoleService_CreateTag_FullMethodName, r, g.s.CreateTag)
}

func (g *console) GetTag(ctx context.Context, r *marchv1.GetTagRequest) (*marchv1.GetTagResponse, error) {
	return checked(ctx, g.gate, marchv1.ConsoleService_GetTag_FullMethodName, r, g.s.GetTag)
}

func (g *console) ListTags(ctx context.Context, r *marchv1.ListTagsRequest) (*marchv1.ListTagsResponse, error) {
	return checked(ctx, g.gate, marchv1.ConsoleService_ListTags_FullMethodName, r, g.s.ListTags)
}

func (g *console) SearchTags(ctx context.Context, r *marchv1.SearchTagsRequest) (*marchv1.SearchTagsResponse, error) {
	return checked(ctx, g.gate, marchv1.ConsoleService_SearchTags_FullMethodName, r, g.s.SearchTags)
}

func (g *console) UpdateTag(ctx context.Context, r *marchv1.UpdateTagRequest) (*marchv1.UpdateTagResponse, error) {
	return checked(ctx, g.gate, marchv1.ConsoleService_UpdateTag_FullMethodName, r, g.s.UpdateTag)
}

func (g *console) DeleteTag(ctx context.Context, r *marchv1.DeleteTagRequest) (*marchv1.DeleteTagResponse, error) {
	return checked(ctx, g.gate, marchv1.ConsoleService_DeleteTag_FullMethodName, r, g.s.DeleteTag)
}

func (g *console) SkipTag(ctx context.Context, r *marchv1.SkipTagRequest) (*marchv1.SkipTagResponse, error) {
	return checked(ctx, g.gate, marchv1.ConsoleService_SkipTag_FullMethodName, r, g.s.SkipTag)
}

func (g *console) PrescaleTag(ctx context.Context,
	r *marchv1.PrescaleTagRequest) (*marchv1.PrescaleTagResponse, error) {
	return checked(ctx, g.gate, marchv1.ConsoleService_PrescaleTag_FullMethodName, r, g.s.PrescaleTag)
}

func (g *console) Decode(ctx context.Context, r *marchv1.DecodeRequest) (*marchv1.DecodeResponse, error) {
	return checked(ctx, g.gate, marchv1.ConsoleService_Decode_FullMethodName, r, g.s.Decode)
}

func (g *console) ListRooms(ctx context.Context, r *marchv1.ListRoomsRequest) (*marchv1.ListRoomsResponse, error) {
	return checked(ctx, g.gate, marchv1.ConsoleService_ListRooms_FullMethodName, r, g.s.ListRooms)
}

func (g *console) ListInstances(ctx context.Context,
	r *marchv1.ListInstancesRequest) (*marchv1.ListInstancesResponse, error) {
	return checked(ctx, g.gate, marchv1.ConsoleService_ListInstances_FullMethodName, r, g.s.ListInstances)
}

func (g *console) ListWorkers(ctx context.Context,
	r *marchv1.ListWorkersRequest) (*marchv1.ListWorkersResponse, error) {
	return checked(ctx, g.gate, marchv1.ConsoleService_ListWorkers_FullMethodName, r, g.s.ListWorkers)
}

func (g *console) ForgetInstance(ctx context.Context,
	r *marchv1.ForgetInstanceRequest) (*marchv1.ForgetInstanceResponse, error) {
	return checked(ctx, g.gate, marchv1.ConsoleService_ForgetInstance_FullMethodName, r, g.s.ForgetInstance)
}

func (g *console) ConfirmInstance(ctx context.Context,
	r *marchv1.ConfirmInstanceRequest) (*marchv1.ConfirmInstanceResponse, error) {
	return checked(ctx, g.gate, marchv1.ConsoleService_ConfirmInstance_FullMethodName, r, g.s.ConfirmInstance)
}

func (g *console) GetCluster(ctx context.Context, r *marchv1.GetClusterRequest) (*marchv1.GetClusterResponse, error) {
	return checked(ctx, g.gate, marchv1.ConsoleService_GetCluster_FullMethodName, r, g.s.GetCluster)
}

func (g *console) UpdateCluster(ctx context.Context,
	r *marchv1.UpdateClusterRequest) (*marchv1.UpdateClusterResponse, error) {
	return checked(ctx, g.gate, marchv1.ConsoleService_UpdateCluster_FullMethodName, r, g.s.UpdateCluster)
}

func (g *console) UpgradeCluster(ctx context.Context,
	r *marchv1.UpgradeClusterRequest) (*marchv1.UpgradeClusterResponse, error) {
	return checked(ctx, g.gate, marchv1.ConsoleService_UpgradeCluster_FullMethodName, r, g.s.UpgradeCluster)
}

func (g *console) PlanMigration(ctx context.Context,
	r *marchv1.PlanMigrationRequest) (*marchv1.PlanMigrationResponse, error) {
	return checked(ctx, g.gate, marchv1.ConsoleService_PlanMigration_FullMethodName, r, g.s.PlanMigration)
}

func (g *console) CountPlanCost(ctx context.Context,
	r *marchv1.CountPlanCostRequest) (*marchv1.CountPlanCostResponse, error) {
	return checked(ctx, g.gate, marchv1.ConsoleService_CountPlanCost_FullMethodName, r, g.s.CountPlanCost)
}

func (g *console) ApplyMigration(ctx context.Context,
	r *marchv1.ApplyMigrationRequest) (*marchv1.ApplyMigrationResponse, error) {
	return checked(ctx, g.gate, marchv1.ConsoleService_ApplyMigration_FullMethodName, r, g.s.ApplyMigration)
}

func (g *console) GetMigration(ctx context.Context,
	r *marchv1.GetMigrationRequest) (*marchv1.GetMigrationResponse, error) {
	return checked(ctx, g.gate, marchv1.ConsoleService_GetMigration_FullMethodName, r, g.s.GetMigration)
}

func (g *console) ListMigrations(ctx context.Context,
	r *marchv1.ListMigrationsRequest) (*marchv1.ListMigrationsResponse, error) {
	return checked(ctx, g.gate, marchv1.ConsoleService_ListMigrations_FullMethodName, r, g.s.ListMigrations)
}

func (g *console) WatchMigration(r *marchv1.WatchMigrationRequest,
	stream grpc.ServerStreamingServer[marchv1.WatchMigrationResponse]) error {
	return checkedAnswers(g.gate, marchv1.ConsoleService_WatchMigration_FullMethodName, r, stream, g.s.WatchMigration)
}

func (g *console) PauseMigration(ctx context.Context,
	r *marchv1.PauseMigrationRequest) (*marchv1.PauseMigrationResponse, error) {
	return checked(ctx, g.gate, marchv1.ConsoleService_PauseMigration_FullMethodName, r, g.s.PauseMigration)
}

func (g *console) ResumeMigration(ctx context.Context,
	r *marchv1.ResumeMigrationRequest) (*marchv1.ResumeMigrationResponse, error) {
	return checked(ctx, g.gate, marchv1.ConsoleService_ResumeMigration_FullMethodName, r, g.s.ResumeMigration)
}

func (g *console) AbortMigration(ctx context.Context,
	r *marchv1.AbortMigrationRequest) (*marchv1.AbortMigrationResponse, error) {
	return checked(ctx, g.gate, marchv1.ConsoleService_AbortMigration_FullMethodName, r, g.s.AbortMigration)
}

func (g *console) ContinueMigration(ctx context.Context,
	r *marchv1.ContinueMigrationRequest) (*marchv1.ContinueMigrationResponse, error) {
	return checked(ctx, g.gate, marchv1.ConsoleService_ContinueMigration_FullMethodName, r, g.s.ContinueMigration)
}

func (g *console) ListAudit(ctx context.Context, r *marchv1.ListAuditRequest) (*marchv1.ListAuditResponse, error) {
	return checked(ctx, g.gate, marchv1.ConsoleService_ListAudit_FullMethodName, r, g.s.ListAudit)
}

func (g *console) GetRoomUse(ctx context.Context, r *marchv1.GetRoomUseRequest) (*marchv1.GetRoomUseResponse, error) {
	return checked(ctx, g.gate, marchv1.ConsoleService_GetRoomUse_FullMethodName, r, g.s.GetRoomUse)
}

func (g *console) ReportMirror(r *marchv1.ReportMirrorRequest,
	stream grpc.ServerStreamingServer[marchv1.ReportMirrorResponse]) error {
	return checkedAnswers(g.gate, marchv1.ConsoleService_ReportMirror_FullMethodName, r, stream, g.s.ReportMirror)
}
