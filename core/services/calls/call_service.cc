#include "core/services/calls/call_service.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/collect.h"
#include "core/dist_autograd/context.h"
#include "core/dist_autograd/exchange.h"
#include "core/program/program_codec.h"
#include "core/program/program_work.h"
#include "core/program/run_program.h"
#include "core/rpc/declared_method.h"
#include "core/rpc/message_io.h"
#include "core/rref/authorize.h"
#include "core/rref/creation_gate.h"
#include "core/store/failure.h"
#include "core/store/on_device.h"
#include "core/store/value.h"
#include "proto/psd/v1/worker.pb.h"

namespace psd::services {
namespace {

using program::CheckedProgram;
using program::Fingerprint;
using program::Program;
using store::Value;

// The most pairs of callee and program that are remembered as known. A pair that was forgotten
// costs one more exchange.
constexpr size_t kMaxKnownPrograms = 65'536;

// Programs within these limits run on the carrier's thread, because they are cheaper to run than to
// hand to another thread: a few operators on the host that take about ten microseconds in all. The
// carrier's thread never waits for a device.
constexpr size_t kLightInstructions = 32;
constexpr int64_t kLightWork = 128 * 1024;  // in elements, see OperatorWork

bool IsLight(const CheckedProgram& program, absl::Span<const Variable> inputs) {
  const auto is_on_device = [](const Variable& input) {
    return input.ok() && input.tensor().defined() && !input.tensor().OnHost();
  };
  return program.program().instructions.size() <= kLightInstructions &&
         std::none_of(inputs.begin(), inputs.end(), is_on_device) &&
         program::WorkIsAtMost(kLightWork, program, inputs);
}

std::string ProgramObject(const Fingerprint& fingerprint) {
  return absl::StrCat("program ", fingerprint.ToString());
}

absl::Status UnknownProgram(const Fingerprint& fingerprint) {
  ErrorDetail detail;
  detail.object = ProgramObject(fingerprint);
  detail.remedy = "send the program with the call";
  return WithDetail(
      absl::NotFoundError(absl::StrCat(detail.object, " is not known here; ", detail.remedy)),
      detail);
}

bool IsUnknownProgram(const absl::Status& status, const Fingerprint& fingerprint) {
  if (!absl::IsNotFound(status)) return false;
  auto detail = GetDetail(status);
  return detail.has_value() && detail->object == ProgramObject(fingerprint);
}

rpc::CallOptions NoTimeout() {
  rpc::CallOptions options;
  options.timeout = absl::ZeroDuration();
  return options;
}

store::Values ToValues(std::vector<Variable> variables) {
  store::Values values;
  values.reserve(variables.size());
  for (Variable& variable : variables) values.emplace_back(std::move(variable));
  return values;
}

absl::Status BadArgument(size_t number, absl::string_view problem, const Value& value) {
  return absl::InvalidArgumentError(
      absl::StrCat("argument ", number, " of a program ", problem, value.KindName()));
}

bool IsOwn(const Value& value) {
  const rref::RRef rref = rref::RRef::FromValue(value);
  return rref.valid() && rref.is_owner();
}

std::vector<rref::RRef> OwnAmong(const std::vector<rref::RRef>& rrefs) {
  std::vector<rref::RRef> own;
  for (const rref::RRef& rref : rrefs)
    if (rref.is_owner()) own.push_back(rref);
  return own;
}

bool AnyOnDevice(const store::Values& values) {
  return std::any_of(values.begin(), values.end(), store::IsOnDevice);
}

// Whether `value` is a leaf that requires grad and was made here. It becomes a parameter under the
// id of its value. A leaf that was read from a parameter leads to that parameter already.
bool IsNewLeaf(const Value& value) {
  const auto* variable = value.As<Variable>();
  return variable != nullptr && variable->requires_grad() && variable->is_leaf() &&
         variable->key().incarnation == 0;
}

// Returns the inputs of a program. References to this worker's values are replaced by the values,
// all read at the same moment.
absl::StatusOr<std::vector<Variable>> ToVariables(rpc::Access& access, const rpc::ServerCall& call,
                                                  const store::Values& values) {
  std::vector<Variable> variables(values.size());
  std::vector<store::EntryPtr> entries;
  std::vector<size_t> numbers;  // for each entry, the number of its argument
  for (size_t i = 0; i < values.size(); ++i) {
    if (const auto* variable = values[i].As<Variable>()) {
      variables[i] = *variable;
    } else if (IsOwn(values[i])) {
      PSD_ASSIGN_OR_RETURN(store::EntryPtr entry, rref::RRef::FromValue(values[i]).local_entry());
      entries.push_back(std::move(entry));
      numbers.push_back(i);
    } else {
      return BadArgument(i, "must be a tensor or an RRef to one on the callee, not ", values[i]);
    }
  }
  PSD_RETURN_IF_ERROR(rref::Authorize(access, rpc::AskerOf(call), rpc::Right::kRead, entries));
  PSD_ASSIGN_OR_RETURN(std::vector<Value> read, store::Entry::ReadAll(entries));
  for (size_t i = 0; i < read.size(); ++i) {
    auto* variable = read[i].As<Variable>();
    if (variable == nullptr) return BadArgument(numbers[i], "is a reference to ", read[i]);
    variables[numbers[i]] = std::move(*variable);
  }
  return variables;
}

}  // namespace

// The three methods start on the carrier's thread, and submit longer work to the executor. The
// first is for programs outside a context. Such a program leaves nothing behind, so the method is a
// read: a retry may run the program again, and the answer need not be remembered.
constexpr CallService::Method CallService::kProgram{
    {"call.program", rpc::MethodKind::kRead, rpc::RunsOn::kCarrierThread}};
constexpr CallService::Method CallService::kRun{
    {"call.run", rpc::MethodKind::kMutation, rpc::RunsOn::kCarrierThread}};
constexpr CallService::Method CallService::kRemote{
    {"call.remote", rpc::MethodKind::kMutation, rpc::RunsOn::kCarrierThread}};

CallService::CallService(Uses uses) : uses_(std::move(uses)) {
  rpc::Serve(uses_.agent, kProgram, this, &CallService::ServeRun);
  rpc::Serve(uses_.agent, kRun, this, &CallService::ServeRun);
  rpc::Serve(uses_.agent, kRemote, this, &CallService::ServeRemote);
}

CallService::~CallService() {
  gate_->Close();
}

// ---- caller

Future<store::Values> CallService::Run(const std::string& callee, const CallTarget& target,
                                       store::Values arguments,
                                       const dist_autograd::ContextPtr& context,
                                       const rpc::CallOptions& options, Device* device) {
  auto call = std::make_shared<Outgoing>();
  call->context = dist_autograd::RecordingContext(context);
  call->method = target.program != nullptr && call->context == nullptr ? &kProgram : &kRun;
  call->callee = callee;
  call->target = target;
  call->arguments = std::move(arguments);
  call->options = options;
  // Threads that read the network do not wait for the device.
  return Start(call)
      .On(device == nullptr ? nullptr : uses_.continuations)
      .Then([this, device, context = call->context](
                const absl::StatusOr<rpc::Reply>& reply) -> absl::StatusOr<store::Values> {
        if (!reply.ok()) return reply.status();
        return uses_.exchange.DecodeReply(context, *reply, device);
      })
      .On(uses_.continuations);
}

absl::StatusOr<rref::RRef> CallService::Remote(const std::string& callee, const CallTarget& target,
                                               store::Values arguments,
                                               const dist_autograd::ContextPtr& context,
                                               const rpc::CallOptions& options) {
  auto call = std::make_shared<Outgoing>();
  call->method = &kRemote;
  call->callee = callee;
  call->target = target;
  call->arguments = std::move(arguments);
  call->context = dist_autograd::RecordingContext(context);
  call->options = options;
  rref::RRef result = uses_.rrefs.NewUserRRef(callee, 0);
  call->result = result;
  Start(call).OnReady([this, call](const absl::StatusOr<rpc::Reply>& reply) {
    if (reply.ok()) {
      if (call->context != nullptr) {
        call->context->SetSession(reply->callee.name, {reply->callee.incarnation, reply->epoch});
      }
      uses_.rrefs.Created(call->result, reply->callee.incarnation, reply->epoch);
    } else {
      auto detail = GetDetail(reply.status());
      bool fate_unknown =
          (detail.has_value() && detail->fate_unknown) || absl::IsDeadlineExceeded(reply.status());
      uses_.rrefs.CreationFailed(call->result, reply.status(), fate_unknown);
    }
    call->result = rref::RRef();
  });
  return result;
}

Future<rpc::Reply> CallService::Start(std::shared_ptr<Outgoing> call) {
  bool with_program = false;
  if (call->target.program != nullptr) {
    with_program = !CalleeKnows(call->callee, call->target.fingerprint);
  }
  Future<rpc::Reply> answered = call->answered.future();
  ++under_way_;
  answered.OnReady([this](const absl::StatusOr<rpc::Reply>&) { --under_way_; });
  uses_.creations.WhenPassable(rref::CollectReferences(call->arguments), call->options)
      .OnReady([this, call, with_program](const absl::StatusOr<rpc::CallOptions>& left) {
        if (!left.ok()) return static_cast<void>(call->answered.Set(left.status()));
        call->options = *left;
        SendWhereItMayWait(call, with_program);
      });
  return answered;
}

void CallService::SendWhereItMayWait(const std::shared_ptr<Outgoing>& call, bool with_program) {
  if (!AnyOnDevice(call->arguments)) return Send(call, with_program);
  const absl::Status queued =
      uses_.executor.Submit([this, call, with_program] { Send(call, with_program); });
  if (!queued.ok()) call->answered.Set(Annotate(queued, uses_.agent.self().name));
}

void CallService::Send(const std::shared_ptr<Outgoing>& call, bool with_program) {
  auto request = uses_.exchange.EncodeRequest(call->method->info.name, call->callee,
                                              call->arguments, call->context);
  if (!request.ok()) return static_cast<void>(call->answered.Set(request.status()));
  v1::CallTarget fields;
  fields.set_function(call->target.function);
  if (call->target.program != nullptr) {
    fields.set_fingerprint_high(call->target.fingerprint.high);
    fields.set_fingerprint_low(call->target.fingerprint.low);
    if (with_program) fields.set_program(program::EncodeProgram(*call->target.program));
  }
  if (call->result.valid()) {
    fields.set_value_incarnation(call->result.value_id().incarnation);
    fields.set_value_counter(call->result.value_id().counter);
    fields.set_fork_incarnation(call->result.body()->fork_id().incarnation);
    fields.set_fork_counter(call->result.body()->fork_id().counter);
  }
  request->attachments.push_back(rpc::FieldsAttachment(fields));
  const Future<rpc::Reply> answer =
      rpc::Ask(uses_.agent, *call->method, {call->callee}, *std::move(request), call->options);
  call->answered.HelpLike(answer);
  answer.OnReady([this, call, with_program](const absl::StatusOr<rpc::Reply>& reply) {
    if (!with_program && call->target.program != nullptr &&
        IsUnknownProgram(reply.status(), call->target.fingerprint)) {
      return SendWhereItMayWait(call, /*with_program=*/true);
    }
    call->answered.Set(reply);
  });
}

bool CallService::CalleeKnows(const std::string& callee, const Fingerprint& fingerprint) {
  MutexLock lock(mutex_);
  if (known_.size() >= kMaxKnownPrograms) known_.clear();
  return !known_.insert({callee, fingerprint}).second;
}

// ---- callee

absl::Status CallService::MayCall(const rpc::ServerCall& call, const v1::CallTarget& target) {
  const absl::string_view object =
      target.function().empty() ? rpc::kAnyProgram : absl::string_view(target.function());
  return uses_.agent.access().Authorize(rpc::AskerOf(call), rpc::Right::kCall, object);
}

absl::Status CallService::ServeRun(const Answer& answer, rpc::Beside<v1::CallTarget> target) {
  PSD_RETURN_IF_ERROR(MayCall(*answer.call(), target.message));
  Serve(answer.call(), target.message,
        [this, answer](absl::StatusOr<store::Values> results,
                       const dist_autograd::ContextPtr& context) {
          if (!results.ok()) return answer(results.status());
          answer(uses_.exchange.EncodeReply(*answer.call(), context, *results));
        });
  return absl::OkStatus();
}

absl::Status CallService::ServeRemote(const Answer& answer, rpc::Beside<v1::CallTarget> target) {
  const v1::CallTarget& fields = target.message;
  const rpc::ServerCall& call = *answer.call();
  PSD_RETURN_IF_ERROR(MayCall(call, fields));
  GlobalId value{fields.value_incarnation(), fields.value_counter()};
  GlobalId fork{fields.fork_incarnation(), fields.fork_counter()};
  if (value.incarnation != call.caller().incarnation ||
      fork.incarnation != call.caller().incarnation) {
    return absl::InvalidArgumentError(absl::StrCat("call.remote: ids ", value.ToString(), " and ",
                                                   fork.ToString(), " are not the caller's"));
  }
  if (fields.function().empty() && fields.program().empty()) {
    // If the program is not known here, the caller sends the call again with the program and the
    // same ids, so the creation must not begin yet.
    PSD_RETURN_IF_ERROR(
        FindProgram("", {fields.fingerprint_high(), fields.fingerprint_low()}).status());
  }
  PSD_RETURN_IF_ERROR(uses_.rrefs.BeginCreation(value, fork, call.caller(), call.session_epoch()));
  Serve(answer.call(), fields,
        [this, answer, value, fork](absl::StatusOr<store::Values> results,
                                    const dist_autograd::ContextPtr&) {
          Created(answer, value, fork, std::move(results));
        });
  return absl::OkStatus();
}

void CallService::Created(const Answer& answer, GlobalId value, GlobalId fork,
                          absl::StatusOr<store::Values> results) {
  Value first;
  if (!results.ok()) {
    // The error is stored as the value, so that every holder of the reference gets it.
    first =
        Value(std::shared_ptr<store::Object>(std::make_shared<store::Failure>(results.status())));
  } else if (!results->empty()) {
    first = std::move((*results)[0]);
  }
  const bool requires_grad = IsNewLeaf(first);
  absl::Status hosted = uses_.store.Put(value, std::move(first), requires_grad).status();
  if (!hosted.ok()) {
    rref::ForkData creators;
    creators.value = value;
    creators.fork = fork;
    uses_.rrefs.DropFork(creators, answer.call()->caller(), answer.call()->session_epoch());
  }
  uses_.rrefs.EndCreation(value, hosted);
  answer(hosted.ok() ? absl::StatusOr<rpc::Contents>(rpc::Contents{}) : hosted);
}

void CallService::Serve(const CallPtr& call, const v1::CallTarget& target, const Done& done) {
  if (!target.function().empty()) return ServeFunction(call, target.function(), done);
  auto program =
      FindProgram(target.program(), {target.fingerprint_high(), target.fingerprint_low()});
  if (!program.ok()) return done(program.status(), nullptr);
  ServeProgram(call, *std::move(program), done);
}

void CallService::ServeFunction(const CallPtr& call, const std::string& name, const Done& done) {
  if (call->method() == kProgram.info.name) {
    return done(absl::InvalidArgumentError("call.program runs programs, not functions"), nullptr);
  }
  auto function = uses_.functions.Find(name);
  if (!function.ok()) return done(function.status(), nullptr);
  auto arguments = uses_.exchange.DecodeRequest(*call);
  if (!arguments.ok()) return done(arguments.status(), nullptr);
  auto shared = std::make_shared<dist_autograd::Arguments>(*std::move(arguments));
  const auto run = [this, call, name, run = function->run, shared, done](
                       const absl::Status& ready, const EarlyStarts::Leave& leave) {
    if (!ready.ok()) return done(ready, shared->context);
    // The permission to hold a thread ends with the task: a function that has returned its future
    // holds no thread.
    SubmitUser(call, shared->context, done, [this, call, name, run, shared, done, leave] {
      RunFunctionHere(call, name, run, std::move(*shared), done);
    });
  };
  const bool on_object = function->on_object && !shared->values.empty();
  WhenCounted(*shared, [this, call, shared, run, on_object](const absl::Status& counted) {
    if (!counted.ok()) return run(counted, nullptr);
    const std::vector<rref::RRef> needed = OwnAmong(rref::CollectReferences(
        on_object ? store::Values{shared->values.front()} : shared->values));
    if (rref::AllMade(needed)) return run(absl::OkStatus(), nullptr);
    if (on_object)
      return WhenHere(call, needed, [run](const absl::Status& here) { run(here, nullptr); });
    auto candidate = early_->Add(run);
    if (candidate == nullptr) return;
    WhenHere(call, needed,
             [candidate](const absl::Status& here) { candidate->ArgumentsMade(here); });
  });
}

void CallService::RunFunctionHere(const CallPtr& call, const std::string& name,
                                  const AsyncFunction& function, dist_autograd::Arguments arguments,
                                  const Done& done) {
  dist_autograd::ContextPtr context = arguments.context;
  if (!call->BeginApply()) return done(absl::CancelledError("cancelled before it began"), context);
  ++served_;
  ++under_way_;
  FunctionCall info(uses_.host, call->caller(), call->deadline(), context,
                    [call] { return call->cancelled(); });
  // The function may set its future after this worker is gone, so the callback passes the gate. The
  // callback is short and never waits, so it runs on the thread that sets the future.
  function(info, std::move(arguments.values))
      .On(nullptr)
      .OnReady([this, gate = gate_, done, context, name,
                call](const absl::StatusOr<store::Values>& results) {
        rref::Gate::Entry entry(*gate);
        if (entry.open()) FunctionEnded(call, name, results, context, done);
      });
}

void CallService::SubmitUser(const CallPtr& call, const dist_autograd::ContextPtr& context,
                             const Done& done, Task task) {
  absl::Status queued =
      uses_.executor.SubmitAs(rpc::LabelOf(WorkLabel::Kind::kUser, *call), std::move(task));
  if (!queued.ok()) done(Annotate(queued, uses_.agent.self().name), context);
}

void CallService::FunctionEnded(const CallPtr& call, const std::string& name,
                                const absl::StatusOr<store::Values>& results,
                                const dist_autograd::ContextPtr& context, const Done& done) {
  if (!results.ok()) {
    done(FunctionFailed(name, *call, results.status()), context);
    --under_way_;
    return;
  }
  const std::vector<rref::RRef> references = rref::CollectReferences(*results);
  // A value that is kept here may later be fetched by any worker, including the owners of these
  // references. So the values of all references must have been made.
  const bool is_kept = call->method() == kRemote.info.name;
  Future<rpc::CallOptions> ready =
      is_kept ? uses_.creations.WhenMade(references, NoTimeout())
              : uses_.creations.WhenAnswerable(call->caller().name, references, NoTimeout());
  ready.OnReady([this, gate = gate_, call, done, context,
                 results = *results](const absl::StatusOr<rpc::CallOptions>& made) {
    rref::Gate::Entry entry(*gate);
    if (!entry.open()) return;
    if (made.ok()) return Deliver(call, results, context, done);
    done(made.status(), context);
    --under_way_;
  });
}

void CallService::Deliver(const CallPtr& call, store::Values results,
                          const dist_autograd::ContextPtr& context, const Done& done) {
  if (!AnyOnDevice(results)) {
    done(std::move(results), context);
    --under_way_;
    return;
  }
  // The function has run, so the answer must not be that the call can be made again. If the task
  // cannot be queued, it runs here.
  const auto read = std::make_shared<Task>([this, results = std::move(results), context, done] {
    done(results, context);
    --under_way_;
  });
  const absl::Status queued =
      uses_.executor.SubmitAs(rpc::LabelOf(WorkLabel::Kind::kOwn, *call), [read] { (*read)(); });
  if (!queued.ok()) (*read)();
}

absl::Status CallService::FunctionFailed(const std::string& name, const rpc::ServerCall& call,
                                         const absl::Status& status) {
  uses_.logger.Log(
      LogLevel::kWarning, "function_failed", absl::StrCat("function '", name, "' failed"),
      {{"function", name}, {"caller", call.caller().name}, {"error", status.ToString()}});
  absl::Status named =
      Annotate(status, absl::StrCat("function '", name, "' on ", uses_.agent.self().name));
  ErrorDetail detail = GetDetail(named).value_or(ErrorDetail{});
  // An error of another worker that the function has called.
  if (!detail.worker.empty()) return named;
  detail.worker = uses_.agent.self().name;
  if (detail.object.empty()) detail.object = name;
  return WithDetail(named, detail);
}

void CallService::WhenCounted(const dist_autograd::Arguments& arguments,
                              std::function<void(const absl::Status&)> next) {
  CollectAll(arguments.borrowed)
      .OnReady([next = std::move(next)](const absl::StatusOr<std::vector<Unit>>& counted) {
        next(counted.status());
      });
}

void CallService::WhenHere(const CallPtr& call, const std::vector<rref::RRef>& rrefs,
                           std::function<void(const absl::Status&)> next) {
  const std::vector<rref::RRef> own = OwnAmong(rrefs);
  if (rref::AllMade(own)) return next(absl::OkStatus());
  Promise<Unit> here;
  here.future().OnReady([gate = gate_, next = std::move(next)](const absl::StatusOr<Unit>& made) {
    rref::Gate::Entry entry(*gate);
    if (entry.open()) next(made.status());
  });
  call->OnCancel([this, here, deadline = call->deadline()] {
    const bool late = uses_.clock.Now() >= deadline;
    here.Set(late ? absl::DeadlineExceededError("an argument was not made before the deadline")
                  : absl::CancelledError("cancelled before it began"));
  });
  uses_.creations.WhenMade(own, NoTimeout())
      .OnReady([here](const absl::StatusOr<rpc::CallOptions>& made) {
        here.Set(made.ok() ? absl::StatusOr<Unit>(Unit{}) : made.status());
      });
}

void CallService::ServeProgram(const CallPtr& call, std::shared_ptr<const CheckedProgram> program,
                               const Done& done) {
  auto arguments = uses_.exchange.DecodeRequest(*call, dist_autograd::ReferenceUse::kRead);
  if (!arguments.ok()) return done(arguments.status(), nullptr);
  // Programs cannot use references to other workers' values (ToVariables refuses them), so only own
  // values are waited for.
  const std::vector<rref::RRef> references = rref::CollectReferences(arguments->values);
  if (rref::AllMade(references)) return StartProgram(call, std::move(program), *arguments, done);
  WhenHere(call, references,
           [this, call, program = std::move(program), arguments = *std::move(arguments),
            done](const absl::Status& here) {
             if (!here.ok()) return done(here, arguments.context);
             StartProgram(call, program, arguments, done);
           });
}

void CallService::StartProgram(const CallPtr& call, std::shared_ptr<const CheckedProgram> program,
                               const dist_autograd::Arguments& arguments, const Done& done) {
  const dist_autograd::ContextPtr& context = arguments.context;
  auto inputs = ToVariables(uses_.agent.access(), *call, arguments.values);
  if (!inputs.ok()) return done(inputs.status(), context);
  // Outside a context nobody can ask for gradients, so no history is recorded there.
  bool record = context != nullptr;
  if (IsLight(*program, *inputs)) {
    return done(RunProgramHere(*call, *program, *inputs, record), context);
  }
  SubmitUser(call, context, done,
             [this, call, program = std::move(program), inputs = *std::move(inputs), record,
              context, done] { done(RunProgramHere(*call, *program, inputs, record), context); });
}

absl::StatusOr<store::Values> CallService::RunProgramHere(const rpc::ServerCall& call,
                                                          const CheckedProgram& program,
                                                          absl::Span<const Variable> inputs,
                                                          bool record) {
  std::optional<NoGradGuard> no_grad;
  if (!record) no_grad.emplace();
  PSD_ASSIGN_OR_RETURN(auto results, program::RunProgram(program, uses_.program_limits, inputs,
                                                         [&call] { return call.cancelled(); }));
  return ToValues(std::move(results));
}

absl::StatusOr<std::shared_ptr<const CheckedProgram>> CallService::FindProgram(
    const std::string& encoded, Fingerprint known) {
  if (encoded.empty()) {
    auto cached = uses_.programs.Find(known);
    if (cached != nullptr) return cached;
    // The encoding of the empty program is empty, as if no program had been sent. It is known
    // everywhere.
    if (!(known == program::FingerprintOf(Program{}))) return UnknownProgram(known);
  }
  const program::ProgramLimits& limits = uses_.program_limits;
  PSD_ASSIGN_OR_RETURN(Program program, program::DecodeProgram(encoded, limits));
  PSD_ASSIGN_OR_RETURN(CheckedProgram checked,
                       CheckedProgram::Create(std::move(program), uses_.operators, limits));
  return uses_.programs.Insert(std::move(checked));
}

}  // namespace psd::services
