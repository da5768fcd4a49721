#include "examples/wide_deep_adult/adult_reader.h"

#include <string>

#include "examples/wide_deep_adult/dataset.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace psd::examples {
namespace {

using ::testing::HasSubstr;

constexpr char kPoor[] =
    "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, "
    "2174, 0, 40, United-States, <=50K\n";
constexpr char kRich[] =
    "52,?,209642,HS-grad,9,Married-civ-spouse,?,Husband,White,Male,0,0,45,?,>50K.\r\n";

std::string Refusal(const std::string& text) {
  return std::string(ParseAdult(text).status().message());
}

TEST(AdultReaderTest, ReadsPeople) {
  auto people = ParseAdult(std::string("\n") + kPoor + kRich + "\n");
  ASSERT_TRUE(people.ok()) << people.status();
  ASSERT_EQ(people->size(), 2u);
  const Person& poor = (*people)[0];
  EXPECT_FALSE(poor.rich);
  EXPECT_EQ(poor.numbers[static_cast<size_t>(Number::kCapitalGain)], 2174);
  EXPECT_EQ(poor.categories[static_cast<size_t>(Category::kCountry)], "United-States");
  const Person& rich = (*people)[1];
  EXPECT_TRUE(rich.rich);
  EXPECT_EQ(rich.categories[static_cast<size_t>(Category::kOccupation)], "?");
}

TEST(AdultReaderTest, OtherFilesAreRefusedWithLineAndColumn) {
  EXPECT_THAT(Refusal(""), HasSubstr("empty"));
  EXPECT_THAT(Refusal("\n \r\n"), HasSubstr("empty"));
  EXPECT_THAT(Refusal(std::string(kPoor) + "1,2,3\n"), HasSubstr("line 2: 3 columns"));
  std::string text = kPoor;
  EXPECT_THAT(Refusal(text.substr(0, text.size() - 3)), HasSubstr("column 15 is '<=5'"));
  text.replace(0, 2, "x9");
  EXPECT_THAT(Refusal(text), HasSubstr("line 1: column 1 is 'x9'"));
  text.replace(0, 2, "nan");
  EXPECT_THAT(Refusal(text), HasSubstr("not a number"));
  EXPECT_THAT(Refusal(std::string(1000, '\0')), HasSubstr("1 columns"));
}

TEST(AdultReaderTest, MissingFilesAreNamed) {
  absl::Status missing = ReadAdult("/nowhere/adult.data").status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.message()), HasSubstr("/nowhere/adult.data"));
  EXPECT_FALSE(ReadAdult("/").ok());
}

TEST(AdultDatasetTest, EveryFifthPersonIsForTheTest) {
  std::vector<Person> people;
  for (int i = 0; i < 12; ++i) people.push_back((*ParseAdult(i % 2 == 0 ? kPoor : kRich))[0]);
  people[9].categories[0] = "Unheard-of";
  auto dataset = AdultDataset::Create(std::move(people));
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_EQ(dataset->train_size(), 10);
  EXPECT_EQ(dataset->test_size(), 2);
  EXPECT_EQ(dataset->ids(0), 3);  // two values, and one id for unknown values
  auto batch = dataset->TestBatch({0, 1});
  ASSERT_TRUE(batch.ok());
  EXPECT_EQ(batch->ids[0].data<int64_t>()[1], 0);
  EXPECT_GT(batch->ids[0].data<int64_t>()[0], 0);
  EXPECT_EQ(batch->labels.data<int64_t>()[1], 1);
  const int64_t* wide = batch->wide_ids.data<int64_t>();
  for (int i = 0; i < 2 * kFields; ++i) EXPECT_LT(wide[i], dataset->wide_ids());
  EXPECT_FALSE(AdultDataset::Create(std::vector<Person>(4)).ok());
}

}  // namespace
}  // namespace psd::examples
