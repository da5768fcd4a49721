#include "examples/wide_deep_adult/model.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"

namespace psd::examples {
namespace {

constexpr int64_t kClasses = 2;
constexpr int64_t kLayerWidths[] = {kFields * kEmbeddingWidth + kNumbers - 1, 64, 32, kClasses};
constexpr int kLayers = 3;

absl::StatusOr<RRef> AttachTable(Worker& worker, const std::string& owner, const std::string& name,
                                 int64_t ids, int64_t width, double deviation, uint64_t seed) {
  CreateOptions options;
  options.requires_grad = true;
  options.rows = true;
  return worker.GetOrCreate(owner, name, Normal({ids, width}, 0, deviation, seed), options);
}

absl::StatusOr<RRef> AttachLayer(Worker& worker, const std::string& owner,
                                 const LayerParameter& parameter, uint64_t seed) {
  CreateOptions options;
  options.requires_grad = true;
  const Program create = Uniform(parameter.shape, -parameter.bound, parameter.bound, seed);
  return worker.GetOrCreate(owner, parameter.name, create, options);
}

std::vector<RowsQuery> Queries(const std::vector<RRef>& tables, const AdultBatch& batch) {
  std::vector<RowsQuery> queries;
  for (size_t field = 0; field < kFields; ++field)
    queries.push_back({tables[field], batch.ids[field]});
  queries.push_back({tables[kFields], batch.wide_ids});
  return queries;
}

absl::StatusOr<std::vector<Variable>> Fetch(Worker& worker, const std::vector<RRef>& layers,
                                            const CallOptions& options) {
  PSD_ASSIGN_OR_RETURN(const Values values, worker.ToHere(layers, options));
  std::vector<Variable> variables;
  for (const Value& value : values) {
    const auto* variable = value.As<Variable>();
    if (variable == nullptr) return absl::InternalError("a layer is no tensor");
    variables.push_back(*variable);
  }
  return variables;
}

}  // namespace

absl::StatusOr<std::vector<RRef>> AttachTables(Worker& worker, std::vector<std::string> owners,
                                               const AdultDataset& dataset, uint64_t seed) {
  std::sort(owners.begin(), owners.end());
  std::vector<RRef> tables;
  for (int field = 0; field < kFields; ++field) {
    PSD_ASSIGN_OR_RETURN(RRef table,
                         AttachTable(worker, owners[tables.size() % owners.size()],
                                     absl::StrCat("adult/embedding", field), dataset.ids(field),
                                     kEmbeddingWidth, 0.05, ++seed));
    tables.push_back(std::move(table));
  }
  PSD_ASSIGN_OR_RETURN(RRef wide,
                       AttachTable(worker, owners[tables.size() % owners.size()], "adult/wide",
                                   dataset.wide_ids(), kClasses, 0, ++seed));
  tables.push_back(std::move(wide));
  return tables;
}

std::vector<LayerParameter> LayerParameters() {
  std::vector<LayerParameter> parameters;
  for (int layer = 0; layer < kLayers; ++layer) {
    const int64_t in = kLayerWidths[layer], out = kLayerWidths[layer + 1];
    const double bound = 1 / std::sqrt(static_cast<double>(in));
    const std::string name = absl::StrCat("adult/layer", layer + 1);
    parameters.push_back({absl::StrCat(name, "/weight"), Shape{out, in}, bound});
    parameters.push_back({absl::StrCat(name, "/bias"), Shape{out}, bound});
  }
  return parameters;
}

absl::StatusOr<Variable> ComputeLogits(Worker& worker, const std::vector<RRef>& tables,
                                       const std::vector<Variable>& layers, const AdultBatch& batch,
                                       const CallOptions& options) {
  PSD_ASSIGN_OR_RETURN(std::vector<Variable> rows,
                       worker.LookUpRows(Queries(tables, batch), options));
  const Variable wide = Sum(rows[kFields], 1, /*keepdim=*/false);
  rows[kFields] = batch.numbers;
  Variable deep = Concat(rows, 1);
  for (size_t layer = 0; layer < kLayers; ++layer) {
    if (layer > 0) deep = Relu(deep);
    deep = Linear(deep, layers[2 * layer], layers[2 * layer + 1]);
  }
  const Variable logits = wide + deep;
  PSD_RETURN_IF_ERROR(logits.status());
  return logits;
}

absl::StatusOr<WideDeepModel> WideDeepModel::Attach(Worker& worker, std::vector<std::string> owners,
                                                    const AdultDataset& dataset, uint64_t seed) {
  std::sort(owners.begin(), owners.end());
  WideDeepModel model;
  PSD_ASSIGN_OR_RETURN(model.tables_, AttachTables(worker, owners, dataset, seed));
  seed += model.tables_.size();
  for (const LayerParameter& parameter : LayerParameters()) {
    const size_t layer = model.layers_.size() / 2;
    const std::string& owner = owners[(model.tables_.size() + layer) % owners.size()];
    PSD_ASSIGN_OR_RETURN(RRef rref, AttachLayer(worker, owner, parameter, ++seed));
    model.layers_.push_back(std::move(rref));
  }
  return model;
}

absl::StatusOr<Variable> WideDeepModel::Forward(Worker& worker, const AdultBatch& batch,
                                                const CallOptions& options) const {
  PSD_ASSIGN_OR_RETURN(const std::vector<Variable> layers, Fetch(worker, layers_, options));
  return ComputeLogits(worker, tables_, layers, batch, options);
}

absl::StatusOr<WideDeepOptimizers> CreateOptimizers(Worker& worker, const WideDeepModel& model,
                                                    double lr, double table_lr,
                                                    const JoinOptions& join) {
  Adam adam;
  adam.lr = lr;
  RowwiseAdagrad adagrad;
  adagrad.lr = table_lr;
  WideDeepOptimizers optimizers;
  PSD_ASSIGN_OR_RETURN(optimizers.layers, DistributedOptimizer::Create(worker, "adult/layers", adam,
                                                                       model.layers(), {}, join));
  PSD_ASSIGN_OR_RETURN(
      optimizers.tables,
      DistributedOptimizer::Create(worker, "adult/tables", adagrad, model.tables(), {}, join));
  return optimizers;
}

absl::StatusOr<double> TrainStep(Worker& worker, const WideDeepModel& model,
                                 const WideDeepOptimizers& optimizers, const AdultBatch& batch) {
  PSD_ASSIGN_OR_RETURN(Context context, worker.NewContext());
  CallOptions options;
  options.context = &context;
  PSD_ASSIGN_OR_RETURN(const Variable logits, model.Forward(worker, batch, options));
  const Variable loss = CrossEntropy(logits, batch.labels);
  PSD_RETURN_IF_ERROR(context.Backward({loss}));
  PSD_RETURN_IF_ERROR(optimizers.layers->Step(context));
  PSD_RETURN_IF_ERROR(optimizers.tables->Step(context));
  return loss.tensor().data<float>()[0];
}

int64_t CountCorrect(const Tensor& logits, const Tensor& labels) {
  const auto* row = logits.data<float>();
  const auto* label = labels.data<int64_t>();
  int64_t correct = 0;
  for (int64_t i = 0; i < labels.NumElements(); ++i, row += kClasses)
    correct += (row[1] > row[0] ? 1 : 0) == label[i];
  return correct;
}

}  // namespace psd::examples
