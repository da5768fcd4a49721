#include "core/rref/value_codec.h"

#include <algorithm>
#include <array>
#include <deque>
#include <iterator>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/base/buffer.h"
#include "core/base/ids.h"
#include "core/base/remedy.h"
#include "core/base/status.h"
#include "core/rref/tensor_pack.h"
#include "core/rref/value_format.h"
#include "proto/psd/v1/value.pb.h"

namespace psd::rref {
namespace {

using store::RemoteReference;
using store::Value;

absl::Status TooDeep() {
  return WithRemedy(absl::InvalidArgumentError(absl::StrCat("values are nested deeper than ",
                                                            store::kMaxValueDepth, " levels")),
                    "flatten them");
}

absl::Status TooMany() {
  return WithRemedy(absl::InvalidArgumentError(absl::StrCat("more than ", store::kMaxValueItems,
                                                            " values in one message")),
                    "send them in parts");
}

// Returns the tensors that represent a sparse tensor on the wire: extents, indices and values.
std::array<Tensor, kTensorsPerSparse> PartsOf(const SparseTensor& sparse) {
  const absl::Span<const int64_t> extents = sparse.shape().extents();
  return {Tensor::Of<int64_t>({sparse.shape().rank()}, extents), sparse.indices(), sparse.values()};
}

// Returns the sparse tensors of a message, in order. Requires: the kinds and the number of
// `tensors` were checked.
absl::StatusOr<std::vector<SparseTensor>> JoinSparse(const v1::Values& in,
                                                     absl::Span<const Tensor> tensors) {
  std::vector<SparseTensor> joined;
  if (in.kinds().find(static_cast<char>(ValueKind::kSparse)) == std::string::npos) return joined;
  for (char kind : in.kinds()) {
    if (static_cast<ValueKind>(kind) == ValueKind::kTensor) tensors.remove_prefix(1);
    if (static_cast<ValueKind>(kind) != ValueKind::kSparse) continue;
    const Tensor& extents = tensors[0];
    if (extents.dtype() != DType::kI64 || extents.rank() != 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("the extents of a sparse tensor arrived as ", extents.ToString()));
    }
    PSD_ASSIGN_OR_RETURN(Shape shape, Shape::Checked({extents.data<int64_t>(),
                                                      static_cast<size_t>(extents.NumElements())}));
    PSD_ASSIGN_OR_RETURN(SparseTensor sparse, SparseTensor::Create(shape, tensors[1], tensors[2]));
    joined.push_back(std::move(sparse));
    tensors.remove_prefix(kTensorsPerSparse);
  }
  return joined;
}

class Encoder {
 public:
  Encoder(v1::Values& out, DescribeFork describe, size_t values) : out_(out), describe_(describe) {
    tensors_.reserve(values);
  }

  absl::Status Add(const Value& value, int depth) {
    if (depth > store::kMaxValueDepth) return TooDeep();
    if (out_.kinds().size() >= store::kMaxValueItems) return TooMany();
    return std::visit([&](const auto& v) { return AddField(v, depth); }, value.variant());
  }
  // The tensors in the order of their values. The pointers are valid as long as the values and this
  // object live.
  const std::vector<const Tensor*>& tensors() const { return tensors_; }

 private:
  void AddKind(ValueKind kind) { out_.mutable_kinds()->push_back(static_cast<char>(kind)); }
  void AddText(const std::string& text) {
    out_.mutable_text()->append(text);
    out_.add_text_sizes(static_cast<uint32_t>(text.size()));
  }
  void AddForkText(const std::string& text) {
    out_.mutable_fork_text()->append(text);
    out_.add_fork_text_sizes(static_cast<uint32_t>(text.size()));
  }
  void BeginRun() {
    run_ = fork_;
    out_.add_fork_runs(0);
    out_.add_owner_incarnations(fork_.owner_incarnation);
    AddForkText(fork_.owner);
    AddForkText(fork_.parent);
  }

  absl::Status AddField(std::monostate, int) {
    AddKind(ValueKind::kNone);
    return absl::OkStatus();
  }
  absl::Status AddField(bool v, int) {
    AddKind(ValueKind::kBool);
    out_.mutable_bools()->push_back(v ? 1 : 0);
    return absl::OkStatus();
  }
  absl::Status AddField(int64_t v, int) {
    AddKind(ValueKind::kInt);
    out_.add_ints(v);
    return absl::OkStatus();
  }
  absl::Status AddField(double v, int) {
    AddKind(ValueKind::kDouble);
    out_.add_doubles(v);
    return absl::OkStatus();
  }
  absl::Status AddField(const std::string& v, int) {
    AddKind(ValueKind::kString);
    AddText(v);
    return absl::OkStatus();
  }
  absl::Status AddField(const Variable& v, int) {
    if (!v.ok()) return v.status();
    AddKind(ValueKind::kTensor);
    tensors_.push_back(&v.tensor());
    return absl::OkStatus();
  }
  absl::Status AddField(const std::shared_ptr<const RemoteReference>& v, int) {
    if (v == nullptr) return absl::InvalidArgumentError("an RRef that refers to nothing");
    PSD_RETURN_IF_ERROR(describe_(*v, fork_));
    AddKind(ValueKind::kRRef);
    if (out_.fork_runs().empty() || fork_.owner_incarnation != run_.owner_incarnation ||
        fork_.owner != run_.owner || fork_.parent != run_.parent) {
      BeginRun();
    }
    const int run = out_.fork_runs_size() - 1;
    out_.set_fork_runs(run, out_.fork_runs(run) + 1);
    AddForkText(fork_.name);
    for (GlobalId id : {fork_.value, fork_.fork}) {
      out_.add_ids(id.incarnation);
      out_.add_ids(id.counter);
    }
    return absl::OkStatus();
  }
  absl::Status AddField(const std::shared_ptr<const Value::List>& list, int depth) {
    AddKind(ValueKind::kList);
    out_.add_items(static_cast<uint32_t>(list->size()));
    for (const Value& item : *list) PSD_RETURN_IF_ERROR(Add(item, depth + 1));
    return absl::OkStatus();
  }
  absl::Status AddField(const std::shared_ptr<const Value::Map>& map, int depth) {
    AddKind(ValueKind::kMap);
    out_.add_items(static_cast<uint32_t>(map->size()));
    for (const auto& [key, item] : *map) AddText(key);
    for (const auto& [key, item] : *map) PSD_RETURN_IF_ERROR(Add(item, depth + 1));
    return absl::OkStatus();
  }
  absl::Status AddField(const std::shared_ptr<store::Object>& object, int) {
    return WithRemedy(absl::InvalidArgumentError(absl::StrCat(
                          "an object of type ", object == nullptr ? "none" : object->TypeName(),
                          " does not leave its worker")),
                      "pass an RRef to it");
  }

  absl::Status AddField(const std::shared_ptr<const SparseTensor>& sparse, int) {
    AddKind(ValueKind::kSparse);
    for (Tensor& part : PartsOf(*sparse)) {
      sparse_parts_.push_back(std::move(part));
      tensors_.push_back(&sparse_parts_.back());
    }
    return absl::OkStatus();
  }

  v1::Values& out_;
  DescribeFork describe_;
  ForkData fork_;  // the latest RRef
  ForkData run_;   // the first RRef of the run that fork_ belongs to
  std::vector<const Tensor*> tensors_;
  std::deque<Tensor> sparse_parts_;
};

// Reads the columns from front to back. CheckColumns has checked before that each column has as
// many entries as the kinds need, so that no reference is adopted from a damaged message.
class Decoder {
 public:
  Decoder(const v1::Values& in, std::vector<Variable> variables, std::vector<SparseTensor> sparse,
          std::vector<Value> references)
      : in_(in),
        variables_(std::move(variables)),
        sparse_(std::move(sparse)),
        references_(std::move(references)) {}

  absl::StatusOr<std::vector<Value>> All() {
    std::vector<Value> values;
    values.reserve(in_.kinds().size());
    while (kind_ < in_.kinds().size()) {
      // Messages with thousands of values are mostly tensors, so these take a short path.
      if (static_cast<ValueKind>(in_.kinds()[kind_]) == ValueKind::kTensor) {
        ++kind_;
        values.emplace_back(std::move(variables_[tensor_++]));
        continue;
      }
      PSD_ASSIGN_OR_RETURN(Value value, Next());
      values.push_back(std::move(value));
    }
    return values;
  }

 private:
  std::string NextText() {
    std::string text = in_.text().substr(text_offset_, in_.text_sizes(text_));
    text_offset_ += in_.text_sizes(text_++);
    return text;
  }

  absl::StatusOr<Value> Next() {
    switch (static_cast<ValueKind>(in_.kinds()[kind_++])) {
      case ValueKind::kNone:
        return Value();
      case ValueKind::kBool:
        return Value(in_.bools()[bool_++] != 0);
      case ValueKind::kInt:
        return Value(static_cast<int64_t>(in_.ints(int_++)));
      case ValueKind::kDouble:
        return Value(in_.doubles(double_++));
      case ValueKind::kString:
        return Value(NextText());
      case ValueKind::kTensor:
        return Value(std::move(variables_[tensor_++]));
      case ValueKind::kRRef:
        return std::move(references_[reference_++]);
      case ValueKind::kList:
        return NextList();
      case ValueKind::kMap:
        return NextMap();
      case ValueKind::kSparse:
        tensor_ += kTensorsPerSparse;
        return Value(std::move(sparse_[next_sparse_++]));
    }
    return absl::InternalError("a kind that was checked before");
  }
  absl::StatusOr<Value> NextList() {
    Value::List list(in_.items(item_++));
    for (Value& item : list) {
      PSD_ASSIGN_OR_RETURN(item, Next());
    }
    return Value::OfList(std::move(list));
  }
  absl::StatusOr<Value> NextMap() {
    Value::Map map(in_.items(item_++));
    for (auto& [key, item] : map) key = NextText();
    for (auto& [key, item] : map) {
      PSD_ASSIGN_OR_RETURN(item, Next());
    }
    return Value::OfMap(std::move(map));
  }

  const v1::Values& in_;
  std::vector<Variable> variables_;
  std::vector<SparseTensor> sparse_;
  std::vector<Value> references_;
  size_t kind_ = 0;
  size_t bool_ = 0;
  size_t tensor_ = 0;
  size_t next_sparse_ = 0;
  size_t reference_ = 0;
  size_t text_offset_ = 0;
  int text_ = 0;
  int int_ = 0;
  int double_ = 0;
  int item_ = 0;
};

// The number of entries that the kinds need in each column.
struct Counts {
  size_t bools = 0;
  size_t ints = 0;
  size_t doubles = 0;
  size_t texts = 0;
  size_t tensors = 0;
  size_t references = 0;
  size_t items = 0;
};

// Counts the entries that the kinds of a message need.
// Errors: INVALID_ARGUMENT for an unknown kind, too many values, values that are nested too deeply,
// and a container with fewer items than it should have.
absl::StatusOr<Counts> CountColumns(const v1::Values& in) {
  if (in.kinds().size() > store::kMaxValueItems) return TooMany();
  Counts counts;
  std::vector<size_t> open;  // for each container around the next value, its items still to come
  for (char kind : in.kinds()) {
    if (!open.empty()) --open.back();
    size_t opened = 0;
    switch (static_cast<ValueKind>(kind)) {
      case ValueKind::kNone:
        break;
      case ValueKind::kBool:
        ++counts.bools;
        break;
      case ValueKind::kInt:
        ++counts.ints;
        break;
      case ValueKind::kDouble:
        ++counts.doubles;
        break;
      case ValueKind::kString:
        ++counts.texts;
        break;
      case ValueKind::kTensor:
        ++counts.tensors;
        break;
      case ValueKind::kSparse:
        counts.tensors += kTensorsPerSparse;
        break;
      case ValueKind::kRRef:
        ++counts.references;
        break;
      case ValueKind::kList:
      case ValueKind::kMap: {
        if (counts.items >= static_cast<size_t>(in.items_size())) {
          return absl::InvalidArgumentError("a container without a number of items");
        }
        opened = in.items(static_cast<int>(counts.items++));
        if (opened > in.kinds().size()) {
          return absl::InvalidArgumentError(
              absl::StrCat("a container of ", opened, " among ", in.kinds().size(), " values"));
        }
        if (static_cast<ValueKind>(kind) == ValueKind::kMap) counts.texts += opened;
        break;
      }
      default:
        return absl::InvalidArgumentError(
            absl::StrCat("unknown kind of value ", static_cast<int>(static_cast<uint8_t>(kind))));
    }
    if (open.size() >= static_cast<size_t>(store::kMaxValueDepth)) return TooDeep();
    if (opened > 0) open.push_back(opened);
    while (!open.empty() && open.back() == 0) open.pop_back();
  }
  if (!open.empty()) return absl::InvalidArgumentError("a container lacks items");
  return counts;
}

absl::Status CheckColumn(const char* name, size_t want, size_t have) {
  if (want == have) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the values need ", want, " entries of ", name, ", but ", have, " arrived"));
}

template <typename Numbers>
size_t Sum(const Numbers& numbers) {
  size_t sum = 0;
  for (uint32_t number : numbers) sum += number;
  return sum;
}

absl::Status CheckForks(const v1::Values& in, size_t references) {
  const auto runs = static_cast<size_t>(in.fork_runs_size());
  if (std::find(in.fork_runs().begin(), in.fork_runs().end(), 0u) != in.fork_runs().end()) {
    return absl::InvalidArgumentError("a run of no RRefs");
  }
  PSD_RETURN_IF_ERROR(CheckColumn("RRefs", references, Sum(in.fork_runs())));
  PSD_RETURN_IF_ERROR(CheckColumn("owner incarnations", runs, in.owner_incarnations_size()));
  PSD_RETURN_IF_ERROR(CheckColumn("ids", references * kIdsPerRRef, in.ids_size()));
  PSD_RETURN_IF_ERROR(
      CheckColumn("RRefs' texts", runs * kTextsPerForkRun + references, in.fork_text_sizes_size()));
  return CheckColumn("RRefs' text bytes", Sum(in.fork_text_sizes()), in.fork_text().size());
}

// Checks all columns except those of tensors. Returns the number of tensors.
absl::StatusOr<size_t> CheckColumns(const v1::Values& in) {
  PSD_ASSIGN_OR_RETURN(Counts want, CountColumns(in));
  PSD_RETURN_IF_ERROR(CheckColumn("bools", want.bools, in.bools().size()));
  PSD_RETURN_IF_ERROR(CheckColumn("ints", want.ints, in.ints_size()));
  PSD_RETURN_IF_ERROR(CheckColumn("doubles", want.doubles, in.doubles_size()));
  PSD_RETURN_IF_ERROR(CheckColumn("texts", want.texts, in.text_sizes_size()));
  PSD_RETURN_IF_ERROR(CheckForks(in, want.references));
  PSD_RETURN_IF_ERROR(CheckColumn("items", want.items, in.items_size()));
  for (char b : in.bools()) {
    if (b != 0 && b != 1) return absl::InvalidArgumentError("a bool is neither 0 nor 1");
  }
  PSD_RETURN_IF_ERROR(CheckColumn("text bytes", Sum(in.text_sizes()), in.text().size()));
  return want.tensors;
}

// Makes a payload from a message and the columns and buffers of its tensors.
absl::StatusOr<rpc::Payload> Seal(v1::Values& out, const TensorColumns& columns,
                                  std::vector<Buffer> buffers) {
  rpc::Payload payload;
  payload.buffers = std::move(buffers);
  out.mutable_tensor_runs()->Add(columns.counts.begin(), columns.counts.end());
  out.mutable_dtypes()->Add(columns.dtypes.begin(), columns.dtypes.end());
  out.mutable_ranks()->Add(columns.ranks.begin(), columns.ranks.end());
  out.mutable_dims()->Add(columns.dims.begin(), columns.dims.end());
  if (!out.SerializeToString(&payload.header)) {
    return WithRemedy(absl::InvalidArgumentError("the texts of one message exceed 2 GiB"),
                      "send them in parts or as tensors");
  }
  return payload;
}

absl::StatusOr<rpc::Payload> Seal(v1::Values& out, absl::Span<const Tensor* const> tensors,
                                  const Device* stays_on = nullptr) {
  TensorColumns columns;
  std::vector<Buffer> buffers;
  PSD_RETURN_IF_ERROR(PackTensors(tensors, &columns, &buffers, stays_on));
  return Seal(out, columns, std::move(buffers));
}

// Reads a message and checks its columns. Returns the number of its tensors.
absl::StatusOr<size_t> Open(const rpc::Payload& payload, v1::Values& in) {
  if (!in.ParseFromString(payload.header)) {
    return absl::InvalidArgumentError(
        absl::StrCat(payload.header.size(), " header bytes are no list of values"));
  }
  return CheckColumns(in);
}

// Takes the tensors of a message, whose columns were checked, from its buffers.
absl::StatusOr<std::vector<Tensor>> Unpack(const rpc::Payload& payload, const v1::Values& in,
                                           size_t tensors) {
  TensorColumns columns;
  columns.counts.assign(in.tensor_runs().begin(), in.tensor_runs().end());
  columns.dtypes.assign(in.dtypes().begin(), in.dtypes().end());
  columns.ranks.assign(in.ranks().begin(), in.ranks().end());
  columns.dims.assign(in.dims().begin(), in.dims().end());
  return UnpackTensors(columns, tensors, payload.buffers);
}

// Returns the RRefs of a message, by run. Requires: its columns were checked.
std::vector<ForkRun> ForkRunsOf(const v1::Values& in) {
  absl::string_view text = in.fork_text();
  int texts = 0, ids = 0;
  const auto next_text = [&] {
    const absl::string_view next = text.substr(0, in.fork_text_sizes(texts++));
    text.remove_prefix(next.size());
    return std::string(next);
  };
  const auto next_id = [&] {
    const GlobalId id{in.ids(ids), in.ids(ids + 1)};
    ids += 2;
    return id;
  };
  std::vector<ForkRun> runs(static_cast<size_t>(in.fork_runs_size()));
  for (int i = 0; i < in.fork_runs_size(); ++i) {
    ForkRun& run = runs[static_cast<size_t>(i)];
    run.owner = next_text();
    run.owner_incarnation = in.owner_incarnations(i);
    run.parent = next_text();
    run.forks.resize(in.fork_runs(i));
    for (ForkRun::Fork& fork : run.forks) {
      fork.value = next_id();
      fork.fork = next_id();
      fork.name = next_text();
    }
  }
  return runs;
}

absl::StatusOr<std::vector<Value>> AdoptAll(const std::vector<ForkRun>& runs, AdoptForks adopt) {
  std::vector<Value> references;
  for (const ForkRun& run : runs) {
    PSD_ASSIGN_OR_RETURN(std::vector<Value> adopted, adopt(run));
    PSD_CHECK(adopted.size() == run.forks.size(), "adopt gives one reference per fork");
    if (references.empty()) {
      references = std::move(adopted);
    } else {
      std::move(adopted.begin(), adopted.end(), std::back_inserter(references));
    }
  }
  return references;
}

void Collect(const Value& value, std::vector<Variable>& variables) {
  if (const Variable* variable = value.As<Variable>()) {
    variables.push_back(*variable);
  } else if (const Value::List* list = value.AsList()) {
    for (const Value& item : *list) Collect(item, variables);
  } else if (const Value::Map* map = value.AsMap()) {
    for (const auto& [key, item] : *map) Collect(item, variables);
  } else if (const SparseTensor* sparse = value.AsSparse()) {
    for (Tensor& part : PartsOf(*sparse)) variables.emplace_back(std::move(part));
  }
}

}  // namespace

std::vector<Variable> CollectVariables(absl::Span<const Value> values) {
  std::vector<Variable> variables;
  for (const Value& value : values) Collect(value, variables);
  return variables;
}

absl::StatusOr<rpc::Payload> EncodeValues(absl::Span<const Value> values, DescribeFork describe) {
  v1::Values out;
  Encoder encoder(out, describe, values.size());
  for (const Value& value : values) PSD_RETURN_IF_ERROR(encoder.Add(value, 1));
  return Seal(out, encoder.tensors());
}

absl::StatusOr<std::vector<Value>> DecodeValues(const rpc::Payload& payload, WrapTensors wrap,
                                                AdoptForks adopt) {
  v1::Values in;
  PSD_ASSIGN_OR_RETURN(const size_t count, Open(payload, in));
  // The references are adopted first: if anything else of the message cannot be used, they are
  // released again, while references that are never adopted would stay counted on their owners.
  PSD_ASSIGN_OR_RETURN(std::vector<Value> references, AdoptAll(ForkRunsOf(in), adopt));
  PSD_ASSIGN_OR_RETURN(std::vector<Tensor> tensors, Unpack(payload, in, count));
  PSD_ASSIGN_OR_RETURN(std::vector<SparseTensor> sparse, JoinSparse(in, tensors));
  PSD_ASSIGN_OR_RETURN(std::vector<Variable> variables, wrap(std::move(tensors)));
  PSD_CHECK(variables.size() == count, "wrap gives one variable per tensor");
  return Decoder(in, std::move(variables), std::move(sparse), std::move(references)).All();
}

absl::StatusOr<rpc::Payload> EncodeTensorValues(absl::Span<const Tensor> tensors,
                                                const Device* stays_on) {
  if (tensors.size() > store::kMaxValueItems) return TooMany();
  v1::Values out;
  std::string& kinds = *out.mutable_kinds();
  kinds.assign(tensors.size(), static_cast<char>(ValueKind::kTensor));
  std::vector<const Tensor*> defined;
  defined.reserve(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].defined()) {
      defined.push_back(&tensors[i]);
    } else {
      kinds[i] = static_cast<char>(ValueKind::kNone);
    }
  }
  return Seal(out, defined, stays_on);
}

absl::StatusOr<rpc::Payload> EncodeFlatTensors(absl::Span<const FlatTensor> tensors,
                                               const std::shared_ptr<const void>& owner) {
  if (tensors.size() > store::kMaxValueItems) return TooMany();
  v1::Values out;
  out.mutable_kinds()->assign(tensors.size(), static_cast<char>(ValueKind::kTensor));
  TensorColumns columns;
  std::vector<Buffer> buffers;
  PSD_RETURN_IF_ERROR(PackFlatTensors(tensors, owner, &columns, &buffers));
  return Seal(out, columns, std::move(buffers));
}

absl::StatusOr<Tensors> DecodeTensorValues(const rpc::Payload& payload) {
  v1::Values in;
  PSD_ASSIGN_OR_RETURN(const size_t count, Open(payload, in));
  PSD_ASSIGN_OR_RETURN(std::vector<Tensor> defined, Unpack(payload, in, count));
  Tensors tensors;
  tensors.reserve(in.kinds().size());
  size_t next = 0;
  for (char kind : in.kinds()) {
    if (static_cast<ValueKind>(kind) == ValueKind::kTensor) {
      tensors.push_back(std::move(defined[next++]));
    } else if (static_cast<ValueKind>(kind) == ValueKind::kNone) {
      tensors.emplace_back();
    } else {
      return absl::InvalidArgumentError(absl::StrCat(
          "value ", tensors.size(), " of ", in.kinds().size(), " is no tensor, but must be"));
    }
  }
  return tensors;
}

}  // namespace psd::rref
