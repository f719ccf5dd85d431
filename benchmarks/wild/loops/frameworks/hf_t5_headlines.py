"""Fine-tuning of a T5 that writes headlines, from a pandas DataFrame; every text is padded to the longest allowed."""

import random

import pandas as pd
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast, T5Config, T5ForConditionalGeneration

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """A CSV file of news texts with headlines, and a small checkpoint with its tokenizer."""
    rng = random.Random(0)
    syllables = [a + b for a in "bdfgklmnprstv" for b in ("a", "e", "i", "o", "un", "er")]
    words = ["".join(rng.choices(syllables, k=rng.randint(1, 4))) for _ in range(3000)]
    rows = []
    for _ in range(scaled(176, scale, 16)):
        text = [words[int(3000 * rng.random() ** 2)] for _ in range(min(200, int(rng.lognormvariate(3.7, 0.5)) + 8))]
        rows.append({"text": " ".join(text), "headlines": " ".join(text[i] for i in sorted(rng.sample(range(8), 6)))})
    pd.DataFrame(rows).to_csv("news_summary.csv", index=False)

    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=3000, special_tokens=["<pad>", "</s>", "<unk>"])
    tokenizer.train_from_iterator([" ".join(words)], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>")
    fast.save_pretrained("t5-mini")
    torch.manual_seed(0)
    config = T5Config(
        vocab_size=3000, d_model=128, d_kv=32, d_ff=512, num_layers=3, num_heads=4, decoder_start_token_id=0
    )
    T5ForConditionalGeneration(config).save_pretrained("t5-mini")
    return {}


CELL = """
import pandas as pd
import torch
from torch.utils.data import Dataset, DataLoader
from transformers import AutoTokenizer, T5ForConditionalGeneration

model_params = {
    'MODEL': 't5-mini',
    'TRAIN_BATCH_SIZE': 8,
    'TRAIN_EPOCHS': 1,
    'LEARNING_RATE': 1e-3,
    'MAX_SOURCE_TEXT_LENGTH': 256,
    'MAX_TARGET_TEXT_LENGTH': 32,
    'SEED': 42,
}

class YourDataSetClass(Dataset):
    def __init__(self, dataframe, tokenizer, source_len, target_len, source_text, target_text):
        self.tokenizer = tokenizer
        self.data = dataframe
        self.source_len = source_len
        self.summ_len = target_len
        self.target_text = self.data[target_text]
        self.source_text = self.data[source_text]

    def __len__(self):
        return len(self.target_text)

    def __getitem__(self, index):
        source_text = str(self.source_text[index])
        target_text = str(self.target_text[index])
        # cleaning data so as to ensure data is in string type
        source_text = ' '.join(source_text.split())
        target_text = ' '.join(target_text.split())

        source = self.tokenizer([source_text], max_length=self.source_len, truncation=True,
                                padding='max_length', return_tensors='pt')
        target = self.tokenizer([target_text], max_length=self.summ_len, truncation=True,
                                padding='max_length', return_tensors='pt')
        return {
            'source_ids': source['input_ids'].squeeze().to(dtype=torch.long),
            'source_mask': source['attention_mask'].squeeze().to(dtype=torch.long),
            'target_ids': target['input_ids'].squeeze().to(dtype=torch.long),
        }

def train(epoch, tokenizer, model, device, loader, optimizer):
    global n_texts, loss
    model.train()
    for _, data in enumerate(loader, 0):
        y = data['target_ids'].to(device, dtype=torch.long)
        lm_labels = y.clone().detach()
        lm_labels[y == tokenizer.pad_token_id] = -100
        ids = data['source_ids'].to(device, dtype=torch.long)
        mask = data['source_mask'].to(device, dtype=torch.long)

        outputs = model(input_ids=ids, attention_mask=mask, labels=lm_labels)
        loss = outputs[0]
        if _ % 10 == 0:
            print(f'Epoch: {epoch}, step: {_}, Loss: {loss.item():.3f}')

        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        n_texts += len(ids)

device = 'cuda' if torch.cuda.is_available() else 'cpu'
torch.manual_seed(model_params['SEED'])
tokenizer = AutoTokenizer.from_pretrained(model_params['MODEL'])
model = T5ForConditionalGeneration.from_pretrained(model_params['MODEL'])
model = model.to(device)

df = pd.read_csv('news_summary.csv')
df['text'] = 'summarize: ' + df['text']
training_set = YourDataSetClass(df, tokenizer, model_params['MAX_SOURCE_TEXT_LENGTH'],
                                model_params['MAX_TARGET_TEXT_LENGTH'], 'text', 'headlines')
training_loader = DataLoader(training_set, batch_size=model_params['TRAIN_BATCH_SIZE'], shuffle=True, num_workers=0)
optimizer = torch.optim.Adam(params=model.parameters(), lr=model_params['LEARNING_RATE'])

n_texts = 0
for epoch in range(model_params['TRAIN_EPOCHS']):
    train(epoch, tokenizer, model, device, training_loader, optimizer)
"""

CHANGES = (
    Change(
        "padding to the longest of the batch",
        "padding",
        edits={
            "training_loader = DataLoader(training_set,": "def cut(items):\n"
            "    data = torch.utils.data.default_collate(items)\n"
            "    longest, longest_y = data['source_mask'].sum(1).max(), (data['target_ids'] != 0).sum(1).max()\n"
            "    return {'source_ids': data['source_ids'][:, :longest],\n"
            "            'source_mask': data['source_mask'][:, :longest],\n"
            "            'target_ids': data['target_ids'][:, :longest_y]}\n\n"
            "training_loader = DataLoader(training_set, collate_fn=cut,"
        },
    ),
    Change(
        "bfloat16 autocast",
        "precision",
        edits={
            "        outputs = model(input_ids": "        with torch.autocast(device, dtype=torch.bfloat16):\n"
            "          outputs = model(input_ids"
        },
    ),
    Change("two workers", "num_workers", edits={"shuffle=True, num_workers=0)": "shuffle=True, num_workers=2)"}),
    Change(
        "tokenised once, in one call",
        "cache_items",
        edits={
            "        self.source_text = self.data[source_text]\n": "        self.source_text = self.data[source_text]\n"
            "        self.source, self.target = [\n"
            "            tokenizer([' '.join(str(t).split()) for t in texts], max_length=length, truncation=True,\n"
            "                      padding='max_length', return_tensors='pt')\n"
            "            for texts, length in ((self.source_text, source_len), (self.target_text, target_len))]\n",
            CELL[CELL.index("        source_text = str(") : CELL.index("def train(")]: "        return {\n"
            "            'source_ids': self.source['input_ids'][index],\n"
            "            'source_mask': self.source['attention_mask'][index],\n"
            "            'target_ids': self.target['input_ids'][index],\n"
            "        }\n\n",
        },
    ),
    Change("batches of 32", "larger_batch", edits={"'TRAIN_BATCH_SIZE': 8,": "'TRAIN_BATCH_SIZE': 32,"}),
    Change(
        "fused Adam",
        "fused_optimizer",
        edits={"lr=model_params['LEARNING_RATE'])": "lr=model_params['LEARNING_RATE'], fused=True)"},
    ),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="n_texts", seconds=6)
