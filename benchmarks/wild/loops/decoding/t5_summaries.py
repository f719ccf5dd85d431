"""Summaries of a validation set by a small T5 with beam search: pairs of articles padded to 256 tokens, no training."""

import logging

import numpy as np
import pandas as pd
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast, T5Config, T5ForConditionalGeneration

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """Articles of 40 to 220 words, a tokenizer, and a T5 that has been trained elsewhere."""
    logging.getLogger("transformers").setLevel(logging.ERROR)
    vocab = {"<pad>": 0, "</s>": 1, "<unk>": 2, "summarize:": 3, **{f"w{k}": k + 4 for k in range(3996)}}
    inner = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    inner.post_processor = processors.TemplateProcessing("$A </s>", None, [("</s>", 1)])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", eos_token="</s>", unk_token="<unk>", padding_side="right"
    )
    rng = np.random.default_rng(0)
    texts = [
        " ".join(f"w{k}" for k in rng.integers(0, 3996, int(rng.integers(40, 220))))
        for _ in range(scaled(7 * 16, scale, 16))
    ]
    config = T5Config(
        vocab_size=4000,
        d_model=128,
        d_kv=32,
        d_ff=512,
        num_layers=2,
        num_decoder_layers=2,
        num_heads=4,
        decoder_start_token_id=0,
        pad_token_id=0,
        eos_token_id=1,
    )
    return {
        "val_df": pd.DataFrame({"text": texts, "headlines": [text[:60] for text in texts]}),
        "tokenizer": tokenizer,
        "model": T5ForConditionalGeneration(config),
    }


CELL = """
import time
import pandas as pd
import torch
from torch.utils.data import DataLoader, Dataset

model_params = {
    'VALID_BATCH_SIZE': 2,
    'MAX_SOURCE_TEXT_LENGTH': 256,
    'MAX_TARGET_TEXT_LENGTH': 32,
    'SEED': 42,
}

class SummaryDataset(Dataset):
    def __init__(self, dataframe, tokenizer, source_len, target_len):
        self.tokenizer = tokenizer
        self.data = dataframe
        self.source_len = source_len
        self.summ_len = target_len
        self.target_text = self.data['headlines']
        self.source_text = self.data['text']

    def __len__(self):
        return len(self.target_text)

    def __getitem__(self, index):
        source_text = 'summarize: ' + ' '.join(str(self.source_text[index]).split())
        target_text = ' '.join(str(self.target_text[index]).split())
        source = self.tokenizer([source_text], max_length=self.source_len, padding='max_length', truncation=True, return_tensors='pt')
        target = self.tokenizer([target_text], max_length=self.summ_len, padding='max_length', truncation=True, return_tensors='pt')
        return {
            'source_ids': source['input_ids'].squeeze().to(dtype=torch.long),
            'source_mask': source['attention_mask'].squeeze().to(dtype=torch.long),
            'target_ids': target['input_ids'].squeeze().to(dtype=torch.long),
        }

def validate(epoch, tokenizer, model, device, loader):
    # Function to evaluate model for predictions
    model.eval()
    predictions = []
    actuals = []
    n_tokens = 0
    with torch.no_grad():
        for _, data in enumerate(loader, 0):
            y = data['target_ids'].to(device, dtype=torch.long)
            ids = data['source_ids'].to(device, dtype=torch.long)
            mask = data['source_mask'].to(device, dtype=torch.long)

            generated_ids = model.generate(
                input_ids=ids,
                attention_mask=mask,
                max_length=40,
                min_length=40,
                num_beams=2,
                repetition_penalty=2.5,
                length_penalty=1.0,
                early_stopping=True,
            )
            preds = [tokenizer.decode(g, skip_special_tokens=True, clean_up_tokenization_spaces=True) for g in generated_ids]
            target = [tokenizer.decode(t, skip_special_tokens=True, clean_up_tokenization_spaces=True) for t in y]
            if _ % 10 == 0:
                print(f'Completed {_}')
            predictions.extend(preds)
            actuals.extend(target)
            n_tokens += generated_ids.numel()
    return predictions, actuals, n_tokens

torch.manual_seed(model_params['SEED'])
device = 'cuda' if torch.cuda.is_available() else 'cpu'
model = model.to(device)
val_dataset = SummaryDataset(val_df, tokenizer, model_params['MAX_SOURCE_TEXT_LENGTH'], model_params['MAX_TARGET_TEXT_LENGTH'])
val_params = {
    'batch_size': model_params['VALID_BATCH_SIZE'],
    'shuffle': False,
    'num_workers': 0,
}
val_loader = DataLoader(val_dataset, **val_params)

t0 = time.time()
predictions, actuals, n_tokens = validate(0, tokenizer, model, device, val_loader)
final_df = pd.DataFrame({'Generated Text': predictions, 'Actual Text': actuals})
final_df.to_csv('predictions.csv')
print(f'{len(final_df)} summaries in {time.time() - t0:.1f} s')
"""

CHANGES = (
    Change("batches of 16", "larger_batch", edits={"'VALID_BATCH_SIZE': 2": "'VALID_BATCH_SIZE': 16"}),
    Change(
        "padded to the longest of the batch",
        "padding",
        edits={
            "            ids = data['source_ids'].to(device, dtype=torch.long)\n": ""
            "            longest = data['source_mask'].sum(1).max()\n"
            "            ids = data['source_ids'][:, :longest].to(device, dtype=torch.long)\n",
            "            mask = data['source_mask'].to(device, dtype=torch.long)\n": ""
            "            mask = data['source_mask'][:, :longest].to(device, dtype=torch.long)\n",
        },
    ),
    Change(
        "bfloat16 weights",
        "precision",
        edits={"model = model.to(device)\n": "model = model.to(device, torch.bfloat16)\n"},
    ),
    Change("two workers", "num_workers", edits={"'num_workers': 0": "'num_workers': 2"}),
    Change(
        "one thread",
        "threads",
        edits={
            "torch.manual_seed(model_params['SEED'])\n": "torch.set_num_threads(1)\n"
            "torch.manual_seed(model_params['SEED'])\n"
        },
    ),
    Change("inference mode", "no_grad", edits={"    with torch.no_grad():\n": "    with torch.inference_mode():\n"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="n_tokens", loss="float(len(predictions))", seconds=10)
