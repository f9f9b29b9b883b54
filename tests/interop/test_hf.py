"""The models of transformers: generation, padding, training, folders, with the library itself."""

from __future__ import annotations

import pytest
import torch

transformers = pytest.importorskip("transformers")

from fractal_ssm import SequenceModel, UsageError, create_model  # noqa: E402
from fractal_ssm.interop import hf  # noqa: E402
from fractal_ssm.interop.hf.padding import Padding  # noqa: E402

VOCABULARY = 11
LAYERS = {
    "fractal": {"name": "fractal", "d_state": 16},
    "s5": {"name": "s5", "d_state": 8, "blocks": 1},
    "s4d": {"name": "s4d", "d_state": 8},
    "lru": {"name": "lru", "d_state": 8},
    "transformer": {"name": "transformer", "n_heads": 2},
}


def config(layer: str = "s5", **fields) -> hf.FractalSSMConfig:
    fields = dict(vocab_size=VOCABULARY, hidden_size=8, num_hidden_layers=2, layer=LAYERS[layer]) | fields
    return hf.FractalSSMConfig(**fields)


def language_model(layer: str = "s5", **fields) -> hf.FractalSSMForCausalLM:
    torch.manual_seed(0)
    model = hf.FractalSSMForCausalLM(config(layer, **fields)).eval()
    with torch.no_grad():
        # Spread the scores, so that the greedy choice is no tie.
        model.lm_head.linear.weight.mul_(5)
    return model


def tokens(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(1, VOCABULARY, shape, generator=torch.Generator().manual_seed(seed))


def greedy(model, ids: torch.Tensor, n: int) -> torch.Tensor:
    with torch.no_grad():
        for _ in range(n):
            ids = torch.cat((ids, model(ids, use_cache=False).logits[:, -1].argmax(-1, keepdim=True)), dim=1)
    return ids


@pytest.mark.parametrize("layer", LAYERS)
def test_generation_by_steps_equals_full_forward(layer):
    model, ids = language_model(layer), tokens(3, 7)
    assert torch.equal(model.generate(ids, max_new_tokens=12, do_sample=False, pad_token_id=0), greedy(model, ids, 12))


@pytest.mark.parametrize("layer", ["s5", "transformer"])
def test_beams_carry_their_states(layer):
    model, ids = language_model(layer), tokens(2, 5)
    options = dict(max_new_tokens=8, num_beams=3, do_sample=False, pad_token_id=0)
    assert torch.equal(model.generate(ids, **options), model.generate(ids, use_cache=False, **options))


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_nothing(side):
    model, ids = language_model("fractal"), tokens(2, 9)
    mask = torch.ones(2, 9, dtype=torch.int64)
    padded = slice(0, 4) if side == "left" else slice(5, None)
    valid = slice(4, None) if side == "left" else slice(0, 5)
    mask[1, padded] = 0
    with torch.no_grad():
        output = model(ids, attention_mask=mask, use_cache=True, output_hidden_states=True)
        torch.testing.assert_close(output.logits[1, valid], model(ids[1:, valid]).logits[0])
        torch.testing.assert_close(output.logits[0], model(ids[:1]).logits[0])
        # The state is that after each sample's own last position.
        after = model(tokens(2, 1, seed=3), cache=output.cache).logits
        alone = model(torch.cat((ids[1:, valid], tokens(2, 1, seed=3)[1:]), dim=1)).logits[:, -1:]
        torch.testing.assert_close(after[1:], alone)
    assert len(output.hidden_states) == 3 and all(h.shape == (2, 9, 8) for h in output.hidden_states)


def test_prompts_padded_on_the_left_are_continued():
    model, ids = language_model(), tokens(2, 9)
    ids[1, :4] = 0
    mask = torch.ones_like(ids)
    mask[1, :4] = 0
    options = dict(max_new_tokens=6, do_sample=False, pad_token_id=0)
    found = model.generate(ids, attention_mask=mask, **options)
    assert torch.equal(found[1, 4:], model.generate(ids[1:, 4:], **options)[0])


def test_a_text_is_continued_from_its_cache():
    model, ids = language_model(), tokens(2, 12)
    options = dict(max_new_tokens=4, do_sample=False, pad_token_id=0)
    with torch.no_grad():
        cache = model(ids[:, :8], use_cache=True).cache
    assert cache.get_seq_length() == 8
    assert torch.equal(model.generate(ids, cache=cache, **options), greedy(model, ids, 4))


def test_masks_that_no_padding_gives_are_refused():
    for mask in ([[1, 0, 1]], [[0, 0, 0]], [[0, 1, 0], [1, 0, 1]]):
        with pytest.raises(UsageError, match="no position of a sample, or leaves a gap"):
            Padding(torch.tensor(mask))
    padding = Padding(torch.tensor([[0, 1, 1], [1, 1, 0], [0, 1, 0]]))
    x = torch.arange(9).view(3, 3)
    assert padding.to_front(x).tolist() == [[1, 2, 0], [3, 4, 5], [7, 8, 6]]
    assert torch.equal(padding.back(padding.to_front(x)), x)


def test_the_loss_is_of_the_next_token():
    model, ids = language_model(), tokens(3, 7)
    labels = ids.clone()
    labels[0, 4:] = -100
    logits = model(ids).logits[:, :-1]
    chosen = logits.log_softmax(-1).gather(2, ids[:, 1:, None])[..., 0]
    expected = -chosen[labels[:, 1:] != -100].mean()
    torch.testing.assert_close(model(ids, labels=labels).loss, expected)
    assert torch.equal(model(ids, logits_to_keep=1).logits, model(ids).logits[:, -1:])
    assert isinstance(model(ids, return_dict=False), tuple)


def test_gradient_checkpointing_gives_equal_gradients():
    model, ids = language_model("fractal").train(), tokens(2, 9)
    plain = torch.autograd.grad(model(ids, labels=ids).loss, list(model.parameters()))
    model.activation_checkpointing_enable()
    assert model.is_activation_checkpointing
    calls = []
    function = model.model._gradient_checkpointing_func
    model.model._gradient_checkpointing_func = lambda *a: calls.append(1) or function(*a)
    again = torch.autograd.grad(model(ids, labels=ids).loss, list(model.parameters()))
    assert len(calls) == 2
    for one, other in zip(plain, again, strict=True):
        torch.testing.assert_close(one, other)


def test_folders_and_auto_classes(tmp_path):
    model = language_model("s4d", body={"mixer": "full_glu", "norm": "batch"})
    model.save_pretrained(tmp_path)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(again) is hf.FractalSSMForCausalLM and not again.training
    assert all(map(torch.equal, model.state_dict().values(), again.state_dict().values()))
    assert again.no_weight_decay() == model.no_weight_decay() != set()
    body = transformers.AutoModel.from_pretrained(tmp_path)
    ids = tokens(1, 4)
    assert torch.equal(body(ids).last_hidden_state, model.model(ids).last_hidden_state)
    classifier = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path, num_labels=3)
    assert classifier(ids).logits.shape == (1, 3) and 0 < classifier.score.linear.weight.abs().max() < 1
    assert transformers.AutoConfig.from_pretrained(tmp_path).body == model.config.body
    half = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert half.model.body.blocks[0].layer.C.dtype == torch.float32
    assert half(ids).logits.dtype == half.lm_head.linear.weight.dtype == torch.bfloat16
    with pytest.raises(UsageError, match="of the transformers library"):
        SequenceModel.from_pretrained(tmp_path)


def test_weights_of_the_body_must_be_there(tmp_path):
    language_model().save_pretrained(tmp_path)
    with pytest.raises(UsageError, match="lacks .* weights of the model"):
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path, num_hidden_layers=3)


def test_embeddings_are_tied_and_resized():
    model = language_model(tie_word_embeddings=True)
    assert model.lm_head.linear.weight is model.model.body.encoder.embedding.weight
    model.resize_token_embeddings(VOCABULARY + 4)
    assert model(torch.tensor([[VOCABULARY + 3]])).logits.shape == (1, 1, VOCABULARY + 4)


@pytest.mark.parametrize("pool", ["mean", "last", "cls"])
def test_classifiers_of_ours_become_theirs(pool):
    torch.manual_seed(0)
    ours = create_model("s5", n_classes=3, n_tokens=VOCABULARY, d_model=8, n_layers=2, layer={"d_state": 16}, pool=pool)
    theirs = hf.FractalSSMForSequenceClassification.from_sequence_model(ours.eval())
    ids, lengths = tokens(2, 9), torch.tensor([9, 5])
    mask = (torch.arange(9) < lengths[:, None]).long()
    with torch.no_grad():
        torch.testing.assert_close(theirs(ids, attention_mask=mask).logits, ours(ids, lengths))
    assert theirs(ids, labels=torch.tensor([0, 2])).loss.requires_grad
    assert theirs.num_labels == 3


def test_language_models_of_ours_become_theirs():
    torch.manual_seed(0)
    options = dict(d_model=8, n_layers=1, task="tokens")
    ours = SequenceModel(LAYERS["s5"], n_classes=VOCABULARY, n_tokens=VOCABULARY, **options).eval()
    theirs = hf.FractalSSMForCausalLM.from_sequence_model(ours)
    with torch.no_grad():
        torch.testing.assert_close(theirs(tokens(2, 5)).logits, ours(tokens(2, 5)))
    tagger = SequenceModel(LAYERS["s5"], n_classes=2, n_tokens=VOCABULARY, **options)
    with pytest.raises(UsageError, match="it tags"):
        hf.FractalSSMForCausalLM.from_sequence_model(tagger)
    with pytest.raises(UsageError, match="of task='classification', got one of task='tokens'"):
        hf.FractalSSMForSequenceClassification.from_sequence_model(ours)


def test_real_input_and_regression():
    model = hf.FractalSSMForSequenceClassification(
        config(vocab_size=None, d_input=2, num_labels=1, problem_type="regression")
    )
    output = model(input_values=torch.randn(3, 9, 2), labels=torch.randn(3))
    assert model.main_input_name == "input_values" and output.loss.shape == ()
    with pytest.raises(UsageError, match="takes input_values and not input_ids"):
        model(tokens(1, 3))


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: config(body={"mixr": "glu"}), "no option 'mixr'.*mean 'mixer'"),
        (lambda: config(body={"d_model": 8}), "no option 'd_model'.*hidden_size"),
        (lambda: hf.FractalSSMForCausalLM(config(layer="s5", vocab_size=None, d_input=1)), "needs vocab_size"),
        (lambda: hf.FractalSSMForCausalLM(hf.FractalSSMConfig.from_name("s5", vocab_size=5)), "bidirectional"),
        (lambda: hf.FractalSSMModel(config(hidden_size=0)), "d_model >= 1"),
        (lambda: language_model()(tokens(1, 3), attention_mask=torch.ones(1, 2)), "attention_mask has the shape"),
        (lambda: language_model()(tokens(1, 3), labels=tokens(1, 3), logits_to_keep=1), "leave out logits_to_keep"),
        (lambda: hf.FractalSSMConfig.from_name("s55"), "Unknown model"),
    ],
)
def test_mistakes_are_told(call, says):
    with pytest.raises(UsageError, match=says):
        call()


def test_configurations_by_name():
    fields = dict(vocab_size=18, layer={"bidirectional": False}, body={"dropout": 0.5})
    found = hf.FractalSSMConfig.from_name("lra/s5-listops", **fields)
    assert (found.hidden_size, found.num_hidden_layers, found.body["dropout"]) == (128, 8, 0.5)
    assert found.layer["name"] == "s5" and found.body["mixer"] == "half_glu2"


class Copies(torch.utils.data.Dataset):
    """Sequences whose second half repeats the first."""

    def __len__(self):
        return 16

    def __getitem__(self, index):
        half = tokens(5, seed=index)
        ids = torch.cat((half, half))
        return {"input_ids": ids, "labels": ids}


def trainer(kind, model, folder, **options):
    arguments = transformers.TrainingArguments(
        **dict(output_dir=str(folder), max_steps=4, per_device_train_batch_size=4, learning_rate=0.01, use_cpu=True),
        **dict(weight_decay=0.1, report_to=[], disable_tqdm=True, dataloader_pin_memory=False, save_strategy="no"),
        **options,
    )
    return kind(model, arguments, train_dataset=Copies(), eval_dataset=Copies())


def rates(optimizer, model) -> dict[str, tuple[float, float]]:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {
        names[id(parameter)]: (group["lr"], group["weight_decay"])
        for group in optimizer.param_groups
        for parameter in group["params"]
    }


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_the_trainer_reads_the_marks(tmp_path):
    model = language_model().train()
    plain = rates(trainer(transformers.Trainer, model, tmp_path).create_optimizer(), model)
    ours = rates(trainer(hf.SSMTrainer, model, tmp_path).create_optimizer(), model)
    assert plain.keys() == ours.keys() == dict(model.named_parameters()).keys()
    marked = model.no_weight_decay()
    # The library alone decays eigenvalues and steps, at the full rate.
    assert {plain[name] for name in marked} == {(0.01, 0.1)}
    assert {ours[name] for name in marked} == {(0.001, 0.0)}
    assert all(ours[name] == plain[name] for name in ours.keys() - marked)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_the_trainer_trains_and_evaluates(tmp_path):
    model = language_model().train()
    run = trainer(hf.SSMTrainer, model, tmp_path, gradient_checkpointing=True, gradient_accumulation_steps=2)
    before = run.evaluate()["eval_loss"]
    step = model.model.body.blocks[0].layer.log_dt.detach().clone()
    run.train()
    assert run.evaluate()["eval_loss"] < before
    moved = (model.model.body.blocks[0].layer.log_dt - step).abs().max()
    # Four steps of at most the rate of the mark, at the Trainer's linear schedule.
    assert 0 < moved <= 4 * 0.001
    assert run.predict(Copies()).predictions.shape == (16, 10, VOCABULARY)
